"""PyramidNet (Han et al. 2017, arXiv 1610.02915) as study 002 trains it.

The paper's PyramidNet-110 with alpha 270 has three groups of (110 - 2) / 6 = 18 basic
blocks. The study's model has groups of 17: the layer names that the study prints end
with `layer3.16.bn3` and `bn_out`, so the last group has no block 17. The blocks are
basic ones, because a bottleneck block would have a `bn4`. As in the paper, the width
grows by 270 / (3 * 18) = 5 per block.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn
from torch.nn import functional

STEM = 16
BLOCKS = 17
GROWTH = 5

# With fewer than 5 pixels the last group would have a single pixel.
NEEDS = {"min_image_size": 5, "channels": None, "batch_statistics": True}


def build(*, channels: int, image_size: int, classes: int) -> nn.Module:
    """Build the network; 24,253,410 parameters for 3 channels and 10 classes.

    The number does not depend on the image size, because the network pools globally.
    """
    widths = [STEM + GROWTH * number for number in range(3 * BLOCKS + 1)]
    model = nn.Sequential(
        OrderedDict(
            conv1=_conv(channels, STEM),
            bn1=nn.BatchNorm2d(STEM),
            layer1=_group(widths[: BLOCKS + 1], stride=1),
            layer2=_group(widths[BLOCKS : 2 * BLOCKS + 1], stride=2),
            layer3=_group(widths[2 * BLOCKS :], stride=2),
            bn_out=nn.BatchNorm2d(widths[-1]),
            relu=nn.ReLU(),
            avgpool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            fc=nn.Linear(widths[-1], classes),
        )
    )
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


def _conv(width: int, out: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(width, out, kernel_size=3, stride=stride, padding=1, bias=False)


def _group(widths: list[int], *, stride: int) -> nn.Sequential:
    """A group of blocks; block i maps widths[i] to widths[i + 1] channels.

    Only the first block has the stride.
    """
    strides = [stride] + [1] * (len(widths) - 2)
    return nn.Sequential(*map(BasicBlock, widths[:-1], widths[1:], strides))


class BasicBlock(nn.Module):
    """The paper's basic block: norms before, between and after two convolutions."""

    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(width)
        self.conv1 = _conv(width, out, stride)
        self.bn2 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU()
        self.conv2 = _conv(out, out)
        self.bn3 = nn.BatchNorm2d(out)
        # Round an odd side up, as the strided convolution does.
        self.pool = (
            nn.Identity() if stride == 1 else nn.AvgPool2d(stride, ceil_mode=True)
        )
        self.wider = out - width

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = self.relu(self.bn2(self.conv1(self.bn1(images))))
        shortcut = functional.pad(self.pool(images), (0, 0, 0, 0, 0, self.wider))
        result: torch.Tensor = self.bn3(self.conv2(hidden)) + shortcut
        return result
