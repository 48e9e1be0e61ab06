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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from torch.utils.data import Dataset

from rankbench.rank import variants
from rankbench.rank.data import _files
from rankbench.rank.data._files import Arrays, DataError
from rankbench.rank.data._tokens import (
    TokenArrays,
    TokenFile,
    Tokens,
    is_of_tokens,
    longest_context,
)
from rankbench.rank.torchvision_ops import import_torchvision

__all__ = [
    "AUGMENTS",
    "Arrays",
    "DataError",
    "Images",
    "Samples",
    "TokenArrays",
    "TokenFile",
    "Tokens",
    "find",
    "load",
    "names",
    "path",
    "sizes_of",
]

AUGMENTS = ("none", "affine")

# Data sets that need at most this much memory after resizing are resized once, when
# they are loaded. In larger ones (MNIST at 224 pixels would need 3.3 GiB in every rank)
# each sample is resized on access, as a loader of image files does.
RESIZED_MAX_BYTES = 256 * 2**20

# Number of images that are converted at a time. Few, because loading must not raise a
# rank's peak memory, which is a result.
_CHUNK = 256


def names() -> list[str]:
    """Names of the data sets, sorted."""
    return variants.names("data")


def find(name: str) -> Any:
    """Import the module of a data set.

    Raises:
        ValueError: there is no such data set.
    """
    return variants.load("data", name)


def path(name: str, root: Path) -> Path:
    """The path of the prepared file of a data set."""
    return root / f"{name}.npz"


def load(
    name: str,
    root: Path,
    *,
    channels: int | None = None,
    image_size: int | None = None,
    context: int | None = None,
    augment: str = "none",
    seed: int = 0,
) -> tuple[Samples, Samples, int]:
    """Load a data set: training samples, test samples, number of classes or tokens.

    Args:
        name: one of `names()`.
        root: the folder of the prepared files.
        channels: 1 or 3; None keeps the number of channels of the data set.
        image_size: side in pixels; None keeps the size of the data set.
        context: tokens of a sequence; None keeps the context of the data set.
        augment: one of `AUGMENTS`; applies to the training samples.
        seed: seed of a generated data set; data sets from files ignore it.

    Raises:
        DataError: the prepared file is missing or damaged.
        ValueError: there is no such data set or augmentation, or the images cannot be
            converted to this number of channels, or sequences are shorter.
    """
    if augment not in AUGMENTS:
        raise ValueError(
            f"unknown augment {augment!r}: choose from {', '.join(AUGMENTS)}"
        )
    module = find(name)
    if is_of_tokens(module.SHAPE):
        return _load_tokens(name, module, root, context=context, seed=seed)
    sizes = sizes_of(module.SHAPE, channels=channels, image_size=image_size)
    channels, image_size = sizes["channels"], sizes["image_size"]
    if getattr(module, "PREPARED", False):
        arrays = _files.read(path(name, root), module.SHAPE)
    else:
        offered = {
            "seed": seed,
            "channels": channels,
            "image_size": image_size,
            "root": root,
        }
        arrays = variants.call(module.generate, offered)
    train = _with_channels(torch.from_numpy(arrays.train_images), channels)
    test = _with_channels(torch.from_numpy(arrays.test_images), channels)
    mean, std = (values.expand(channels) for values in _moments(train))
    size = (len(train) + len(test)) * train.shape[1] * image_size**2
    if size <= RESIZED_MAX_BYTES:
        train, test = _resize_all(train, image_size), _resize_all(test, image_size)
    if augment == "affine":
        _affine()  # import torchvision now: it is slow, and may fail
    return (
        Images(
            train,
            torch.from_numpy(arrays.train_labels),
            mean=mean,
            std=std,
            image_size=image_size,
            affine=augment == "affine",
        ),
        Images(
            test,
            torch.from_numpy(arrays.test_labels),
            mean=mean,
            std=std,
            image_size=image_size,
        ),
        module.SHAPE["classes"],
    )


def sizes_of(
    shape: Mapping[str, int],
    *,
    channels: int | None = None,
    image_size: int | None = None,
    context: int | None = None,
) -> dict[str, int]:
    """What `models.build` must know of a data set with this `SHAPE`.

    Args:
        channels, image_size, context: as of `load`.
    """
    if is_of_tokens(shape):
        return {
            "vocabulary": shape["vocabulary"],
            "context": context or shape["context"],
        }
    return {
        "channels": channels or shape["channels"],
        "image_size": image_size or shape["image_size"],
        "classes": shape["classes"],
    }


def _load_tokens(
    name: str, module: Any, root: Path, *, context: int | None, seed: int
) -> tuple[Tokens, Tokens, int]:
    vocabulary = module.SHAPE["vocabulary"]
    context = context or module.SHAPE["context"]
    if context > (longest := longest_context(module.SHAPE)):
        raise ValueError(
            f"{name} has sequences of {longest} tokens or less, not {context}"
        )
    offered = {"seed": seed, "context": context, "root": root}
    arrays: TokenArrays = variants.call(module.generate, offered)
    try:
        arrays.check(vocabulary, context)
    except ValueError as error:
        raise DataError(f"{name}: {error}") from error
    return Tokens(arrays.train, context), Tokens(arrays.test, context), vocabulary


class Images(Dataset[tuple[torch.Tensor, int]]):
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
        images: torch.Tensor,
        labels: torch.Tensor,
        *,
        mean: torch.Tensor,
        std: torch.Tensor,
        image_size: int,
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

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = self.images[index]
        if self._resize:
            image = _resize(image[None], self.sample_shape[-1])[0]
        if self._is_affine:
            image = _affine()(image)
        # `mul` converts to float32 and broadcasts a single channel to all C.
        return image.mul(self._scale).sub_(self._shift), self.labels[index]


def _with_channels(images: torch.Tensor, channels: int) -> torch.Tensor:
    """Images with `channels` channels, or with one channel that is used for all."""
    present = images.shape[1]
    if present == channels or (present, channels) == (1, 3):
        return images
    if (present, channels) != (3, 1):
        raise ValueError(f"cannot convert {present} channels to {channels}")
    means = (chunk.float().mean(1, keepdim=True) for chunk in images.split(_CHUNK))
    return torch.cat([mean.round().to(torch.uint8) for mean in means])


def _moments(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
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


def _resize_all(images: torch.Tensor, image_size: int) -> torch.Tensor:
    if images.shape[-1] == image_size:
        return images
    resized = images.new_empty((*images.shape[:2], image_size, image_size))
    for source, target in zip(images.split(_CHUNK), resized.split(_CHUNK), strict=True):
        target.copy_(_resize(source, image_size))
    return resized


def _resize(images: torch.Tensor, image_size: int) -> torch.Tensor:
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


Samples = Images | Tokens
