"""An LSTM that reads an image row by row."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn

HIDDEN = 128

# A single row is no sequence.
NEEDS = {"min_image_size": 2, "channels": None}


def build(*, channels: int, image_size: int, classes: int) -> nn.Module:
    """Build the network; 82,186 parameters for 1x28x28 images and 10 classes."""
    return nn.Sequential(
        OrderedDict(
            rows=Rows(),
            recurrence=Recurrence(channels * image_size, HIDDEN),
            fc=nn.Linear(HIDDEN, classes),
        )
    )


class Rows(nn.Module):
    """Turns images [N, C, H, W] into sequences of rows [N, H, C * W], top to bottom."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.transpose(1, 2).flatten(2)


class Recurrence(nn.Module):
    """An LSTM over [N, T, features] that returns its last state, [N, hidden]."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(features, hidden, batch_first=True)

    def forward(self, sequence: torch.Tensor) -> torch.Tensor:
        states: torch.Tensor = self.lstm(sequence)[0]
        return states[:, -1]
