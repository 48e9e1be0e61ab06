"""The network of study 004: three convolutions and one linear layer."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

NEEDS = {"min_image_size": 16, "channels": None}


def build(*, channels: int, image_size: int, classes: int) -> nn.Module:
    """Build the network; 113,674 parameters for 1x28x28 images and 10 classes."""
    side = (image_size - 2) // 2  # conv1 and pool1
    side = side - 2 - 1  # conv2, and pool2 with stride 1
    side = (side - 2) // 2  # conv3 and pool3
    # The study defines a dropout layer but never calls it, so it is left out here.
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, 32, kernel_size=5, padding=1),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(kernel_size=2),
            conv2=nn.Conv2d(32, 64, kernel_size=3),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(kernel_size=2, stride=1),
            conv3=nn.Conv2d(64, 128, kernel_size=3),
            relu3=nn.ReLU(),
            pool3=nn.MaxPool2d(kernel_size=2),
            flatten=nn.Flatten(),
            fc1=nn.Linear(128 * side * side, classes),
        )
    )
