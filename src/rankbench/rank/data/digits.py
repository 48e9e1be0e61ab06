"""Handwritten digits (`digits.txt` names their source), enlarged to MNIST's size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from rankbench.rank.data import Arrays

SHAPE = {"channels": 1, "image_size": 28, "classes": 10, "train": 1437, "test": 360}
PREPARED = True


def prepare(source: Path) -> Arrays:
    """Enlarge 8x8 pixels in 0..16 to 28x28 pixels in 0..255, and split the samples.

    It reads `digits.txt` beside this file, and no file in `source`.
    """
    lines = Path(__file__).with_suffix(".txt").read_text().splitlines()
    samples = [line.split() for line in lines if not line.startswith("#")]
    labels = np.array([int(label) for label, _ in samples], dtype=np.int64)
    small = np.array([[int(value, 17) for value in row] for _, row in samples], float)
    pixels = torch.from_numpy(small).reshape(-1, 1, 8, 8) * (255 / 16)
    enlarged = functional.interpolate(pixels, size=(28, 28), mode="bilinear")
    images = enlarged.round().to(torch.uint8).numpy()
    # Test samples are 1/5 of each class, at random.
    shuffled = np.random.default_rng(0).permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    test = np.zeros(len(labels), dtype=bool)
    test[by_class[::5]] = True
    return Arrays(
        train_images=images[~test],
        train_labels=labels[~test],
        test_images=images[test],
        test_labels=labels[test],
    )
