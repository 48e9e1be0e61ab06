"""CIFAR-10, read by torchvision from the files of its Python version."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rankbench.rank.data import Arrays, source_error
from rankbench.rank.torchvision_ops import import_torchvision

SHAPE = {"channels": 3, "image_size": 32, "classes": 10, "train": 50000, "test": 10000}
PREPARED = True


def prepare(source: Path) -> Arrays:
    """Read `source/cifar-10-batches-py`; unpack or download it if a file is missing.

    The batches are pickles; torchvision verifies each checksum before it loads a file.

    Raises:
        DataError: files are missing and cannot be downloaded, or are damaged.
    """
    cifar = import_torchvision().datasets.CIFAR10
    folder = source / cifar.base_folder
    files = [name for name, _ in (*cifar.train_list, *cifar.test_list)]
    files.append(cifar.meta["filename"])
    try:
        missing = [name for name in files if not (folder / name).exists()]
        train = cifar(source, train=True, download=bool(missing))
        test = cifar(source, train=False)
        return Arrays(
            train_images=_channels_first(train.data),
            train_labels=np.array(train.targets, dtype=np.int64),
            test_images=_channels_first(test.data),
            test_labels=np.array(test.targets, dtype=np.int64),
        )
    except Exception as error:
        expected = f"{', '.join(files)}, or {cifar.filename} beside that folder"
        raise source_error("cifar10", folder, expected, error) from error


def _channels_first(images: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2))
