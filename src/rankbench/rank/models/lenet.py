"""LeNet-5 with ReLU and max pooling, as in study 003."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

NEEDS = {"min_image_size": 12, "channels": None}


def build(*, channels: int, image_size: int, classes: int) -> nn.Module:
    """Build the network; 61,706 parameters for 1x28x28 images and 10 classes."""
    # LeNet-5 was designed for 32 pixels; conv1 pads 28 pixels to 32.
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
