"""Data sets: each file `NAME.py` in this folder is the data set `NAME`.

The file declares two literals, which planning reads without importing torch:

    SHAPE     channels, image_size, classes, and the numbers of samples train and test;
              or for tokens vocabulary, context, train and test, and longest_context if
              sequences can be longer than context
    PREPARED  whether ranks read a file that `prepare.py` wrote

If PREPARED is true, `prepare(source)` makes the arrays from the original files in the
folder `source`. Otherwise `generate(seed, *, channels, image_size)` draws them.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset

from rankbench.cell import SIZES
from rankbench.rank import variants
from rankbench.rank.torchvision_ops import import_torchvision
from rankbench.record import first_line, write_atomically

# Data sets that need at most this much memory after resizing are resized once, when
# they are loaded. In larger ones (MNIST at 224 pixels would need 3.3 GiB in every rank)
# each sample is resized on access, as a loader of image files does.
RESIZED_MAX_BYTES = 256 * 2**20

# Number of images that are converted at a time. Few, because loading must not raise a
# rank's peak memory, which is a result.
_CHUNK = 256


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


def write_arrays(path: Path, arrays: Arrays) -> None:
    """Write the prepared file atomically."""
    buffer = io.BytesIO()
    # Not compressed, because every rank of every launch reads it.
    np.savez(buffer, allow_pickle=False, **asdict(arrays))
    write_atomically(path, buffer.getvalue())


def read_arrays(path: Path, shape: Mapping[str, int]) -> Arrays:
    """Read the prepared file of a data set with this `SHAPE`.

    Raises:
        DataError: the file is missing or damaged, or does not fit `SHAPE`.
    """
    try:
        with np.load(path, allow_pickle=False) as members:
            arrays = Arrays(**{f.name: members[f.name] for f in fields(Arrays)})
        arrays.check(shape)
    except FileNotFoundError:
        raise DataError(f"{path} is missing: run `rankbench run --prepare`") from None
    except Exception as error:
        if isinstance(error, OSError) and error.filename:
            raise DataError(f"{path} cannot be opened: {error.strerror}") from error
        # Damage may be in the zip directory, an array header or a checksum, and each
        # raises other exceptions.
        reason = first_line(str(error)) or type(error).__name__
        raise DataError(
            f"{path} is damaged: {reason}: delete it; `rankbench run --prepare`"
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
        "can download them, and run `rankbench run --prepare`"
    )


class Images(Dataset[tuple[Tensor, int]]):
    """Samples (image float32 [C, H, W], label), each converted on access.

    The images are one uint8 tensor, so a data set takes a byte per pixel. The loader
    converts each sample, and its work is part of the measurement.

    Args:
        images: uint8 [N, C or 1, H, W]; a single channel is used for all C.
        labels: int64 [N].
        mean: mean of the pixels 0..255 per channel, float32 [C].
        std: their standard deviation; an image becomes (image - mean) / std.
        image_size: side of a sample in pixels.
        affine: rotate, shift and scale every sample at random; random numbers come
            from the torch generator of the loading process.
    """

    def __init__(
        self,
        images: Tensor,
        labels: npt.NDArray[np.int64],
        mean: Tensor,
        std: Tensor,
        image_size: int,
        *,
        affine: bool = False,
    ) -> None:
        self.images = images
        # A list, because reading a number from a tensor takes as long as an image.
        self.labels: list[int] = labels.tolist()
        self.sample_shape = (len(mean), image_size, image_size)
        self._scale = (1 / std)[:, None, None]
        self._shift = (mean / std)[:, None, None]
        self._resize = images.shape[-1] != image_size
        self._is_affine = affine

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self.images[index]
        if self._resize:
            image = _resize(image[None], self.sample_shape[-1])[0]
        if self._is_affine:
            image = _affine()(image)
        # `mul` converts to float32 and broadcasts a single channel to all C.
        return image.mul(self._scale).sub_(self._shift), self.labels[index]


def _with_channels(images: Tensor, channels: int) -> Tensor:
    """Images with `channels` channels, or with one channel that is used for all."""
    present = images.shape[1]
    if present == channels or (present, channels) == (1, 3):
        return images
    if (present, channels) != (3, 1):
        raise ValueError(f"cannot convert {present} channels to {channels}")
    means = (chunk.float().mean(1, keepdim=True) for chunk in images.split(_CHUNK))
    return torch.cat([mean.round().to(torch.uint8) for mean in means])


def _moments(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel, float32 [C], on the scale 0..255."""
    values = torch.arange(256, dtype=torch.float64)
    means, stds = [], []
    for channel in images.unbind(1):
        counts = torch.zeros(256, dtype=torch.int64)
        for chunk in channel.split(_CHUNK):
            counts += torch.bincount(chunk.flatten(), minlength=256)
        share = counts / channel.numel()
        mean = (share * values).sum()
        variance = (share * (values - mean) ** 2).sum()
        means.append(mean)
        # At least 1, so that a constant channel is not divided by zero.
        stds.append(variance.sqrt().clamp(min=1))
    return torch.stack(means).float(), torch.stack(stds).float()


def _resize_all(images: Tensor, image_size: int) -> Tensor:
    resized = images.new_empty((*images.shape[:2], image_size, image_size))
    for source, target in zip(images.split(_CHUNK), resized.split(_CHUNK), strict=True):
        target.copy_(_resize(source, image_size))
    return resized


def _resize(images: Tensor, image_size: int) -> Tensor:
    """Resize uint8 [N, C, H, W]; each result depends on its own image only."""
    resized = functional.interpolate(
        images.float(), size=(image_size, image_size), mode="bilinear", antialias=True
    )
    return resized.round_().to(torch.uint8)


@functools.cache
def _affine() -> Any:
    # Cached per process instead of stored in the data set: a worker that is spawned
    # would unpickle it, and so import torchvision without `import_torchvision`.
    transforms = import_torchvision().transforms
    return transforms.RandomAffine(degrees=15, translate=(0.1, 0.1), scale=(0.9, 1.1))


# So many sequences are checked: a file that is mapped into memory may be large.
_CHECKED = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenArrays:
    """Token ids from 0, of any integer type, [sequences, context + 1] or longer.

    The last token of a sequence is only a target. The arrays may be memory maps.
    """

    train: npt.NDArray[Any]
    test: npt.NDArray[Any]

    def check(self, vocabulary: int, context: int) -> None:
        """Compare the arrays with what a data set declares.

        Raises:
            ValueError: they differ; names the difference.
        """
        for split, ids in (("train", self.train), ("test", self.test)):
            if ids.ndim != 2 or ids.shape[1] <= context or not len(ids):
                raise ValueError(
                    f"{split} has ids {list(ids.shape)}, not [N, {context + 1}] for "
                    f"sequences of {context} tokens"
                )
            if not np.issubdtype(ids.dtype, np.integer):
                raise ValueError(f"{split} has ids of {ids.dtype}, not integers")
            some = ids[:: max(1, len(ids) // _CHECKED)]
            if some.min() < 0 or some.max() >= vocabulary:
                raise ValueError(
                    f"{split} has ids {some.min()}..{some.max()}, "
                    f"not 0..{vocabulary - 1}"
                )


class Tokens(Dataset[tuple[Tensor, Tensor]]):
    """Samples (token ids, the token that follows each), both int64 [context]."""

    def __init__(self, ids: npt.NDArray[Any], context: int) -> None:
        self._ids = ids
        self.context = context

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        row = self._ids[index, : self.context + 1]
        sequence = torch.from_numpy(row.astype(np.int64))
        return sequence[:-1], sequence[1:]


@dataclass(frozen=True)
class TokenFile:
    """What a file of Python with a data set defines, for a file of token ids.

    Args:
        file: raw ids, little-endian.
        dtype: uint16 or uint32.
        vocabulary: number of tokens.
    """

    file: Path
    dtype: str
    vocabulary: int

    @property
    def SHAPE(self) -> dict[str, int]:
        """Without a context of its own: each cell names one."""
        return {"vocabulary": self.vocabulary, "context": 0}

    def generate(self, *, context: int) -> TokenArrays:
        """Cut the file into sequences; each ends with the first token of the next."""
        from rankbench.own_files import count_sequences  # only such files need it

        kind = np.dtype(self.dtype).newbyteorder("<")
        ids = np.memmap(self.file, kind, mode="r")
        train, test = count_sequences(len(ids), context)
        # Overlapping rows without a copy: row i begins at token i * context.
        rows = np.lib.stride_tricks.as_strided(
            ids,
            (train + test, context + 1),
            (context * kind.itemsize, kind.itemsize),
            writeable=False,
        )
        return TokenArrays(train=rows[:train], test=rows[train:])


Samples = Images | Tokens


def path(name: str, root: Path) -> Path:
    """The path of the prepared file of a data set."""
    return root / f"{name}.npz"


def load(
    name: str,
    root: Path,
    *,
    dataset: Any = None,
    augment: str = "none",
    seed: int = 0,
    **asked: int | None,
) -> tuple[Samples, Samples, int]:
    """Load a data set: training samples, test samples, number of classes or tokens.

    Args:
        name: of the data set.
        root: the folder of the prepared files.
        dataset: what the file of the data set defines; None imports it by its name.
        augment: ``affine`` rotates, shifts and scales training samples at random, or
            ``none``.
        seed: seed of a generated data set; data sets from files ignore it.
        asked: see `sizes_of`.

    Raises:
        DataError: the prepared file is missing or damaged.
        ValueError: there is no such data set, or the images cannot be converted to this
            number of channels.
    """
    dataset = dataset or variants.load("data", name)
    shape = dataset.SHAPE
    sizes = sizes_of(shape, **asked)
    offered = {"seed": seed, "root": root, **sizes}
    if "context" in sizes:
        return _load_tokens(name, dataset, offered)
    if getattr(dataset, "PREPARED", False):
        arrays = read_arrays(path(name, root), shape)
    else:
        arrays = variants.call(dataset.generate, offered)
    channels, side = sizes["channels"], sizes["image_size"]
    train = _with_channels(torch.from_numpy(arrays.train_images), channels)
    test = _with_channels(torch.from_numpy(arrays.test_images), channels)
    mean, std = (values.expand(channels) for values in _moments(train))
    size = (len(train) + len(test)) * train.shape[1] * side**2
    if size <= RESIZED_MAX_BYTES and train.shape[-1] != side:
        train, test = _resize_all(train, side), _resize_all(test, side)
    affine = augment == "affine"
    if affine:
        _affine()  # import torchvision now: it is slow, and may fail
    return (
        Images(train, arrays.train_labels, mean, std, side, affine=affine),
        Images(test, arrays.test_labels, mean, std, side),
        sizes["classes"],
    )


def _load_tokens(
    name: str, dataset: Any, offered: Mapping[str, Any]
) -> tuple[Tokens, Tokens, int]:
    context, vocabulary = offered["context"], offered["vocabulary"]
    arrays: TokenArrays = variants.call(dataset.generate, offered)
    try:
        arrays.check(vocabulary, context)
    except ValueError as error:
        raise DataError(f"{name}: {error}") from error
    return Tokens(arrays.train, context), Tokens(arrays.test, context), vocabulary


def sizes_of(shape: Mapping[str, int], **asked: int | None) -> dict[str, int]:
    """What `models.build` must know of a data set with this `SHAPE`.

    Args:
        asked: channels (1 or 3), image_size (side in pixels), context (tokens of a
            sequence); without them, or with None, they are those of the data set.
    """
    keys = SIZES["tokens" if "vocabulary" in shape else "images"]
    return {key: asked.get(key) or shape[key] for key in keys}
