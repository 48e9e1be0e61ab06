"""Accuracy on the held-out set, overall and per class of an image."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH = 256

# Outputs for tokens are large: at most so many numbers at a time.
OUTPUTS = 2**26


@torch.no_grad()
def evaluate(
    model: nn.Module, dataset: Dataset, *, classes: int, device: torch.device
) -> dict[str, Any]:
    """Accuracy of a model on a data set.

    Returns:
        overall (a fraction), per_class (a fraction for each class; None for a class
        without samples; empty for tokens), samples (number of samples; of tokens, for
        tokens).
    """
    model.eval()
    of_tokens = dataset[0][0].dim() == 1
    outputs = len(dataset[0][0]) * classes if of_tokens else classes
    right = torch.zeros(classes, dtype=torch.int64)
    total = torch.zeros(classes, dtype=torch.int64)
    batch_size = max(1, min(BATCH, OUTPUTS // outputs))
    for inputs, targets in DataLoader(dataset, batch_size=batch_size):
        guesses = model(inputs.to(device)).argmax(dim=-1).cpu().flatten()
        labels = targets.flatten()
        right += torch.bincount(labels[guesses == labels], minlength=classes)
        total += torch.bincount(labels, minlength=classes)
    per_class = [
        r / t if t else None
        for r, t in zip(right.tolist(), total.tolist(), strict=True)
    ]
    return {
        "overall": int(right.sum()) / int(total.sum()),
        "per_class": [] if of_tokens else per_class,
        "samples": int(total.sum()),
    }
