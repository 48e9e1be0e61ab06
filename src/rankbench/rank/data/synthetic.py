"""Synthetic images of any size: noise on a coarse pattern for each class."""

from __future__ import annotations

import numpy as np

from rankbench.rank.data import Arrays

SHAPE = {"channels": 1, "image_size": 28, "classes": 10, "train": 2048, "test": 512}
PREPARED = False

# Blocks per side of a pattern. Few, so that the pattern survives pooling in all models.
_BLOCKS = 4


def generate(
    seed: int,
    *,
    channels: int = SHAPE["channels"],
    image_size: int = SHAPE["image_size"],
) -> Arrays:
    """Draw the images; equal arguments give equal images."""
    rng = np.random.default_rng(seed)
    classes = SHAPE["classes"]
    coarse = rng.integers(0, 128, (classes, channels, _BLOCKS, _BLOCKS), np.uint8)
    block = np.arange(image_size) * _BLOCKS // image_size
    patterns = coarse[:, :, block[:, None], block]

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        labels = rng.permutation(np.arange(count) % classes)
        shape = (count, channels, image_size, image_size)
        images = rng.integers(0, 128, shape, np.uint8)
        for image, label in zip(images, labels, strict=True):
            image += patterns[label]
        return images, labels

    train_images, train_labels = draw(SHAPE["train"])
    test_images, test_labels = draw(SHAPE["test"])
    return Arrays(
        train_images=train_images,
        train_labels=train_labels,
        test_images=test_images,
        test_labels=test_labels,
    )
