"""LeNet-5 in its present-day form, with ReLU and max pooling (study 003)."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

NEEDS = {"min_image_size": 12, "channels": None}


def build(*, channels: int, image_size: int, classes: int) -> nn.Module:
    """Build the network; 61,706 parameters for 1x28x28 and 10 classes."""
    # The padding makes 28 pixels the 32 that LeNet-5 was drawn for.
    side = (image_size // 2 - 4) // 2
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, 6, kernel_size=5, padding=2),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(kernel_size=2),
            conv2=nn.Conv2d(6, 16, kernel_size=5),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(kernel_size=2),
            flatten=nn.Flatten(),
            fc1=nn.Linear(16 * side * side, 120),
            relu3=nn.ReLU(),
            fc2=nn.Linear(120, 84),
            relu4=nn.ReLU(),
            fc3=nn.Linear(84, classes),
        )
    )
