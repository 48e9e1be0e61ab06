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

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankbench.rank import variants
from rankbench.rank.data._samples import (
    Arrays,
    DataError,
    Images,
    TokenArrays,
    TokenFile,
    Tokens,
    make_samples,
    read_arrays,
)

__all__ = [
    "Arrays",
    "DataError",
    "Images",
    "Samples",
    "TokenArrays",
    "TokenFile",
    "Tokens",
    "load",
    "path",
    "sizes_of",
]

Samples = Images | Tokens


def path(name: str, root: Path) -> Path:
    """The path of the prepared file of a data set."""
    return root / f"{name}.npz"


def load(
    name: str,
    root: Path,
    *,
    dataset: Any = None,
    channels: int | None = None,
    image_size: int | None = None,
    context: int | None = None,
    augment: str = "none",
    seed: int = 0,
) -> tuple[Samples, Samples, int]:
    """Load a data set: training samples, test samples, number of classes or tokens.

    Args:
        name: of the data set.
        root: the folder of the prepared files.
        dataset: what the file of the data set defines; None imports it by its name.
        channels: 1 or 3; None keeps the number of channels of the data set.
        image_size: side in pixels; None keeps the size of the data set.
        context: tokens of a sequence; None keeps the context of the data set.
        augment: ``none`` or ``affine``; applies to the training samples.
        seed: seed of a generated data set; data sets from files ignore it.

    Raises:
        DataError: the prepared file is missing or damaged.
        ValueError: there is no such data set, or the images cannot be converted to this
            number of channels, or sequences are shorter.
    """
    dataset = dataset or variants.load("data", name)
    shape = dataset.SHAPE
    sizes = sizes_of(shape, channels=channels, image_size=image_size, context=context)
    if "context" in sizes:
        return _load_tokens(name, dataset, {"seed": seed, "root": root, **sizes})
    if getattr(dataset, "PREPARED", False):
        arrays = read_arrays(path(name, root), shape)
    else:
        offered = {"seed": seed, "root": root, **sizes}
        arrays = variants.call(dataset.generate, offered)
    channels, image_size = sizes["channels"], sizes["image_size"]
    train, test = make_samples(arrays, channels, image_size, augment == "affine")
    return train, test, sizes["classes"]


def _load_tokens(
    name: str, dataset: Any, offered: Mapping[str, Any]
) -> tuple[Tokens, Tokens, int]:
    context, vocabulary = offered["context"], offered["vocabulary"]
    longest = dataset.SHAPE.get("longest_context", dataset.SHAPE["context"])
    if context > longest:
        raise ValueError(
            f"{name} has sequences of {longest} tokens or less, not {context}"
        )
    arrays: TokenArrays = variants.call(dataset.generate, offered)
    try:
        arrays.check(vocabulary, context)
    except ValueError as error:
        raise DataError(f"{name}: {error}") from error
    return Tokens(arrays.train, context), Tokens(arrays.test, context), vocabulary


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
    asked = {"channels": channels, "image_size": image_size, "context": context}
    of_tokens, of_images = (
        ("vocabulary", "context"),
        ("channels", "image_size", "classes"),
    )
    keys = of_tokens if "vocabulary" in shape else of_images
    return {key: asked.get(key) or shape[key] for key in keys}
