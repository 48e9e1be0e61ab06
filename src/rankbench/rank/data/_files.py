"""Reads and writes the prepared file of a data set: four plain arrays."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rankbench.record import first_line, write_atomically


class DataError(ValueError):
    """A data set is not available; the message names the file and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrays:
    """A data set: images uint8 [N, C, H, W] in 0..255, labels int64 [N] from 0."""

    train_images: npt.NDArray[np.uint8]
    train_labels: npt.NDArray[np.int64]
    test_images: npt.NDArray[np.uint8]
    test_labels: npt.NDArray[np.int64]

    def check(self, shape: Mapping[str, int]) -> None:
        """Compare the arrays with a data set's `SHAPE`; any number of samples is fine.

        Raises:
            ValueError: they differ; names the difference.
        """
        side = shape["image_size"]
        sample = (shape["channels"], side, side)
        for split in ("train", "test"):
            images = getattr(self, f"{split}_images")
            labels = getattr(self, f"{split}_labels")
            if images.dtype != np.uint8 or labels.dtype != np.int64:
                raise ValueError(
                    f"{split} has images of {images.dtype} and labels of "
                    f"{labels.dtype}, not uint8 and int64"
                )
            count = labels.shape[0] if labels.ndim == 1 else None
            if not count or images.shape != (count, *sample):
                raise ValueError(
                    f"{split} has images {list(images.shape)} and labels "
                    f"{list(labels.shape)}, not [N, {', '.join(map(str, sample))}] "
                    "and [N]"
                )
            if labels.min() < 0 or labels.max() >= shape["classes"]:
                raise ValueError(
                    f"{split} has labels {labels.min()}..{labels.max()}, "
                    f"not 0..{shape['classes'] - 1}"
                )


def write(path: Path, arrays: Arrays) -> None:
    """Write the prepared file atomically."""
    buffer = io.BytesIO()
    # Not compressed, because every rank of every launch reads it.
    np.savez(buffer, allow_pickle=False, **asdict(arrays))
    write_atomically(path, buffer.getvalue())


def read(path: Path, shape: Mapping[str, int]) -> Arrays:
    """Read the prepared file of a data set with this `SHAPE`.

    Raises:
        DataError: the file is missing or damaged, or does not fit `SHAPE`.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise DataError(f"{path} is missing: run `rankbench prepare`") from None
    except OSError as error:
        raise DataError(f"{path} cannot be opened: {error.strerror}") from error
    with file:
        try:
            with np.load(file, allow_pickle=False) as members:
                arrays = Arrays(**{f.name: members[f.name] for f in fields(Arrays)})
            arrays.check(shape)
        except Exception as error:
            # Damage may be in the zip directory, an array header or a checksum, and
            # each raises other exceptions.
            reason = first_line(str(error)) or type(error).__name__
            raise DataError(
                f"{path} is damaged: {reason}: delete it and run `rankbench prepare`"
            ) from error
    return arrays


def source_error(
    name: str, folder: Path, expected: str, error: BaseException
) -> DataError:
    """The error for original files that are missing or damaged."""
    reason = first_line(" ".join(str(error).split())) or type(error).__name__
    return DataError(
        f"{name} cannot be prepared from {folder}: {reason.rstrip('.')}. Expected "
        f"there: {expected}. Delete damaged files, copy the files from a machine that "
        "can download them, and run `rankbench prepare`"
    )
