"""MNIST, read by torchvision from its four original files."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

from rankbench.rank.data import Arrays, source_error
from rankbench.rank.torchvision_ops import import_torchvision
from rankbench.record import write_atomically

SHAPE = {"channels": 1, "image_size": 28, "classes": 10, "train": 60000, "test": 10000}
PREPARED = True


def prepare(source: Path) -> Arrays:
    """Read the files in `source/MNIST/raw`; download them if any is missing.

    torchvision verifies the checksums of downloads. Existing files, compressed (.gz) or
    not, are used without a check.

    Raises:
        DataError: files are missing and cannot be downloaded, or are damaged.
    """
    mnist = import_torchvision().datasets.MNIST
    folder = source / "MNIST" / "raw"
    packed = [name for name, _ in mnist.resources]
    try:
        missing = [name for name in packed if not _is_there(folder, name)]
        train = mnist(source, train=True, download=bool(missing))
        test = mnist(source, train=False)
    except Exception as error:
        raise source_error("mnist", folder, ", ".join(packed), error) from error
    return Arrays(
        train_images=train.data.numpy()[:, None],
        train_labels=train.targets.numpy().astype(np.int64),
        test_images=test.data.numpy()[:, None],
        test_labels=test.targets.numpy().astype(np.int64),
    )


def _is_there(folder: Path, name: str) -> bool:
    """Whether a file exists; unpacks it first, because torchvision needs that."""
    archive = folder / name
    plain = archive.with_suffix("")
    if not plain.exists() and archive.exists():
        try:
            write_atomically(plain, gzip.decompress(archive.read_bytes()))
        except Exception as error:
            raise ValueError(f"{name} is damaged: {error}") from error
    return plain.exists()
