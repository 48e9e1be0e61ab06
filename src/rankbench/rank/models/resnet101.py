"""torchvision's ResNet-101."""

from __future__ import annotations

from torch import nn

from rankbench.rank.models import _torchvision

# Below 17 pixels the last two stages work on a single one.
NEEDS = {"min_image_size": 17, "channels": None, "batch_statistics": True}


def build(*, channels: int, image_size: int, classes: int) -> nn.Module:
    """Build the network; it pools globally, so its size is that of no image."""
    return _torchvision.resnet("resnet101", channels=channels, classes=classes)
