"""Accuracy on the held-out set, overall and per class."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH = 256


@torch.no_grad()
def evaluate(
    model: nn.Module, dataset: Dataset, *, classes: int, device: torch.device
) -> dict[str, Any]:
    """Accuracy of a model on a data set.

    Returns:
        overall (a fraction), per_class (a fraction for each class; None for a class
        without samples), samples (number of samples).
    """
    model.eval()
    right = torch.zeros(classes, dtype=torch.int64)
    total = torch.zeros(classes, dtype=torch.int64)
    for images, labels in DataLoader(dataset, batch_size=BATCH):
        guesses = model(images.to(device)).argmax(dim=1).cpu()
        right += torch.bincount(labels[guesses == labels], minlength=classes)
        total += torch.bincount(labels, minlength=classes)
    per_class = [
        r / t if t else None
        for r, t in zip(right.tolist(), total.tolist(), strict=True)
    ]
    return {
        "overall": int(right.sum()) / int(total.sum()),
        "per_class": per_class,
        "samples": int(total.sum()),
    }
