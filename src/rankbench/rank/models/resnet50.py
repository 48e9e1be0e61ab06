"""torchvision's ResNet-50."""

from __future__ import annotations

from functools import partial

from rankbench.rank.models import _libraries

# With fewer than 17 pixels the last two stages would have a single pixel.
NEEDS = {"min_image_size": 17, "channels": None, "batch_statistics": True}

build = partial(_libraries.resnet, "resnet50")
