"""Sleeps instead of computing, with gradients of real sizes.

Ranks on few cores then behave like devices of their own, while their communication is
real: its size, its overlap with backward, and what is exposed of it. It says nothing
about arithmetic, so its rows are marked `emulated`.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

NEEDS = {"min_image_size": 1, "channels": None, "emulated": True}

OPTIONS = {
    # Number of layers; each sleeps for its share of the times.
    "layers": {"type": "integer", "minimum": 1, "default": 4},
    # MiB of weights and gradients of all layers together.
    "mib": {"type": "number", "exclusiveMinimum": 0, "default": 4},
    # Microseconds of forward per sample, all layers together.
    "forward_us": {"type": "number", "minimum": 0, "default": 500},
    # Microseconds of backward per sample, all layers together.
    "backward_us": {"type": "number", "minimum": 0, "default": 1000},
}


def build(
    *,
    channels: int,
    image_size: int,
    classes: int,
    layers: int,
    mib: float,
    forward_us: float,
    backward_us: float,
) -> nn.Module:
    """Build layers that sleep, and a linear layer that can learn a little."""
    size = max(1, round(mib * 2**20 / 4 / layers))
    sleeping = [
        (f"layer{i}", SleepLayer(size, forward_us / layers, backward_us / layers))
        for i in range(layers)
    ]
    return nn.Sequential(
        OrderedDict(
            [
                ("pool", nn.AdaptiveAvgPool2d(1)),
                ("flatten", nn.Flatten()),
                *sleeping,
                ("fc", nn.Linear(channels, classes)),
            ]
        )
    )


class SleepLayer(nn.Module):
    """Multiplies by the mean of its weights, which is 1 at first."""

    def __init__(self, size: int, forward_us: float, backward_us: float) -> None:
        """Make a layer.

        Args:
            size: number of weights.
            forward_us, backward_us: microseconds per sample.
        """
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.times = (forward_us * 1e-6, backward_us * 1e-6)

    def forward(self, values: Tensor) -> Tensor:
        """Map [N, C] to [N, C]."""
        scaled: Tensor = _Sleep.apply(values, self.weight, *self.times)
        return scaled


class _Sleep(Function):
    """The product, with a pause in forward and in backward."""

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, weight: Tensor, ahead: float, back: float
    ) -> Tensor:
        _pause(values, ahead)
        ctx.save_for_backward(values, weight)
        ctx.back = back
        return values * weight.mean()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        values, weight = ctx.saved_tensors
        _pause(values, ctx.back)
        each = (gradient * values).sum() / weight.numel()
        return gradient * weight.mean(), each.expand_as(weight).contiguous(), None, None


class _Sleeper:
    """What sleeps instead of computing.

    A busy machine wakes a process late. A device would have gone on meanwhile, so the
    next sleep is as much shorter.
    """

    late = 0.0  # seconds

    @classmethod
    def compute(cls, seconds: float) -> None:
        begun = time.perf_counter()
        left = seconds - cls.late
        if left > 0:
            time.sleep(left)
        cls.late = max(0.0, time.perf_counter() - begun - left)


def _pause(values: Tensor, seconds: float) -> None:
    """Sleep for each sample, unless nothing is computed at all."""
    if values.device.type != "meta":
        _Sleeper.compute(len(values) * seconds)
