"""torchvision's ResNet-50."""

from __future__ import annotations

from torch import nn

from rankbench.rank.models import _libraries

# With fewer than 17 pixels the last two stages would have a single pixel.
NEEDS = {"min_image_size": 17, "channels": None, "batch_statistics": True}


def build(*, channels: int, image_size: int, classes: int) -> nn.Module:
    """Build the network; it pools globally, so `image_size` has no effect."""
    return _libraries.resnet("resnet50", channels=channels, classes=classes)
