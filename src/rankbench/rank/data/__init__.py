"""Data sets by name: `NAME.py` in this folder is the data set `NAME`.

Such a file declares literals that can be read without importing torch:

    SHAPE     channels, image_size, classes, and how many samples train and test have
    PREPARED  whether ranks read a file that `prepare.py` writes

and then `prepare(source)`, which makes the arrays from the original files in the
folder `source`, or, without a file, `generate(seed, *, channels, image_size)`.
"""

from __future__ import annotations

import functools
import importlib
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from torch.utils.data import Dataset

from rankbench.rank.data import _files
from rankbench.rank.data._files import Arrays, DataError
from rankbench.rank.torchvision_ops import import_torchvision

__all__ = ["AUGMENTS", "Arrays", "DataError", "Images", "find", "load", "names", "path"]

AUGMENTS = ("none", "affine")

# Images that take up to this much in their new size are resized once, at load time.
# Beyond it (MNIST at 224 pixels would take 3.3 GiB in every rank) each sample is
# resized when it is asked for, as a loader of image files does.
RESIZED_MAX_BYTES = 256 * 2**20

# Images that are converted at once, so that no step of loading takes much memory:
# a rank's peak memory is a result.
_CHUNK = 256


def names() -> list[str]:
    """Names of the data sets, sorted."""
    files = Path(__file__).parent.glob("[!_]*.py")
    return sorted(file.stem for file in files if file.stem != "prepare")


def find(name: str) -> Any:
    """Import the module of a data set.

    Raises:
        ValueError: there is no such data set.
    """
    if name not in names():
        raise ValueError(f"unknown data set {name!r}: choose from {', '.join(names())}")
    return importlib.import_module(f"{__name__}.{name}")


def path(name: str, root: Path) -> Path:
    """Where the prepared file of a data set lies."""
    return root / f"{name}.npz"


def load(
    name: str,
    root: Path,
    *,
    channels: int | None = None,
    image_size: int | None = None,
    augment: str = "none",
    seed: int = 0,
) -> tuple[Images, Images, int]:
    """Load a data set: training samples, test samples, number of classes.

    Args:
        name: one of `names()`.
        root: the folder of the prepared files.
        channels: 1 or 3; None leaves the data set's own.
        image_size: side in pixels; None leaves the data set's own.
        augment: one of `AUGMENTS`, for the training samples.
        seed: of a generated data set; those from files are the same for every seed.

    Raises:
        DataError: the prepared file is missing or damaged.
        ValueError: an argument has no such choice.
    """
    if augment not in AUGMENTS:
        raise ValueError(
            f"unknown augment {augment!r}: choose from {', '.join(AUGMENTS)}"
        )
    module = find(name)
    channels = channels or module.SHAPE["channels"]
    image_size = image_size or module.SHAPE["image_size"]
    if module.PREPARED:
        arrays = _files.read(path(name, root), module.SHAPE)
    else:
        arrays = module.generate(seed, channels=channels, image_size=image_size)
    train = _with_channels(torch.from_numpy(arrays.train_images), channels)
    test = _with_channels(torch.from_numpy(arrays.test_images), channels)
    mean, std = (values.expand(channels) for values in _moments(train))
    size = (len(train) + len(test)) * train.shape[1] * image_size**2
    if size <= RESIZED_MAX_BYTES:
        train, test = _resize_all(train, image_size), _resize_all(test, image_size)
    if augment == "affine":
        _affine()  # an import that fails, or is slow, does so now
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


class Images(Dataset[tuple[torch.Tensor, int]]):
    """Samples (image float32 [C, H, W], label), converted one by one when asked for.

    The images are one uint8 tensor, so that a data set costs a byte per pixel; what
    a sample costs is then the work of a loader, which belongs to the measurement.

    Args:
        images: uint8 [N, C or 1, H, W]; a single channel stands for all C.
        labels: int64 [N].
        mean, std: float32 [C], of the pixels 0..255; an image becomes
            (image - mean) / std.
        image_size: side of a sample in pixels.
        affine: rotate, shift and scale every sample at random, drawn from the torch
            generator of the process that loads it.
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
        # A list: reading a number out of a tensor would cost as much as the image.
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
        # The product is float32 and has all channels.
        return image.mul(self._scale).sub_(self._shift), self.labels[index]


def _with_channels(images: torch.Tensor, channels: int) -> torch.Tensor:
    """Images with `channels` channels, or with a single one that stands for all."""
    present = images.shape[1]
    if present == channels or (present, channels) == (1, 3):
        return images
    if (present, channels) != (3, 1):
        raise ValueError(f"cannot make {channels} channels out of {present}")
    means = (chunk.float().mean(1, keepdim=True) for chunk in images.split(_CHUNK))
    return torch.cat([mean.round().to(torch.uint8) for mean in means])


def _moments(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and standard deviation per channel, float32 [C], in 0..255."""
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
        # A channel without contrast is left without, instead of divided by zero.
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
    """Resize uint8 [N, C, H, W]; the same pixels whether one by one or together."""
    resized = functional.interpolate(
        images.float(), size=(image_size, image_size), mode="bilinear", antialias=True
    )
    return resized.round_().to(torch.uint8)


@functools.cache
def _affine() -> Any:
    # Cached per process and not kept in the data set: a worker that is not forked
    # would unpickle it, and with it import torchvision without the remedy.
    transforms = import_torchvision().transforms
    return transforms.RandomAffine(degrees=15, translate=(0.1, 0.1), scale=(0.9, 1.1))
