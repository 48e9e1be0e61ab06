"""A small vision transformer."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import nn
from torch.nn import functional

PATCHES = (4, 7, 2)
WIDTH = 64
MLP = 128
BLOCKS = 4
HEADS = 4

# With fewer than 8 pixels an image may be a single patch: attention has no effect.
NEEDS: dict[str, Any] = {"min_image_size": 8, "channels": None}


def build(*, channels: int, image_size: int, classes: int) -> nn.Module:
    """Build the network; 138,890 parameters for 1x28x28 images and 10 classes.

    Raises:
        ValueError: no patch size divides the image size.
    """
    patch = patch_size(image_size)
    parts: OrderedDict[str, nn.Module] = OrderedDict(
        patches=Patches(patch),
        embed=nn.Linear(channels * patch**2, WIDTH),
        positions=Positions((image_size // patch) ** 2, WIDTH),
    )
    for number in range(1, BLOCKS + 1):
        parts[f"block{number}"] = nn.TransformerEncoderLayer(
            WIDTH,
            HEADS,
            MLP,
            dropout=0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
    parts["mean"] = Mean()
    parts["norm"] = nn.LayerNorm(WIDTH)
    parts["head"] = nn.Linear(WIDTH, classes)
    return nn.Sequential(parts)


def patch_size(image_size: int) -> int:
    """Side of a patch in pixels: 4, else 7, else 2, whichever divides the image size.

    Raises:
        ValueError: none of them divides it.
    """
    for patch in PATCHES:
        if image_size % patch == 0:
            return patch
    sizes = ", ".join(map(str, PATCHES))
    raise ValueError(
        f"transformer cuts images into patches of {sizes} pixels: "
        f"none of these divides {image_size}"
    )


class Patches(nn.Module):
    """Cuts images [N, C, H, W] into patches [N, tokens, C * patch * patch], by rows."""

    def __init__(self, patch: int) -> None:
        super().__init__()
        self.patch = patch

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        patches = functional.unfold(images, self.patch, stride=self.patch)
        return patches.transpose(1, 2)


class Positions(nn.Module):
    """Adds a learned position vector to each token of [N, tokens, width]."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.02 * torch.randn(tokens, width))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens + self.weight


class Mean(nn.Module):
    """The mean over the tokens of [N, tokens, width]."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens.mean(1)
