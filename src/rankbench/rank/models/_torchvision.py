"""Code that the models from torchvision share."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from rankbench.rank.torchvision_ops import import_torchvision


def resnet(name: str, *, channels: int, classes: int) -> nn.Sequential:
    """torchvision's untrained ResNet `name` as a sequence, in the order of its forward.

    Parameters keep the names that they have in torchvision.
    """
    model = getattr(import_torchvision().models, name)(num_classes=classes)
    if channels != model.conv1.in_channels:
        model.conv1 = nn.Conv2d(
            channels, 64, kernel_size=7, stride=2, padding=3, bias=False
        )
        nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    parts = OrderedDict(model.named_children())
    fc = parts.popitem()
    assert fc[0] == "fc", f"{name} ends with {fc[0]}"
    return nn.Sequential(OrderedDict([*parts.items(), ("flatten", nn.Flatten()), fc]))
