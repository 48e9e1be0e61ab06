"""Splits a sequence of model parts into groups of about equal cost."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rankbench.decoder import split_evenly
from rankbench.rank.strategies.base import Load

# Of a part that is timed. The first includes one-time set-up.
PASSES = 4


def count_parts(
    balance: str,
    parts: Sequence[nn.Module],
    images: Tensor,
    groups: int,
    load: Load,
) -> list[int]:
    """The number of consecutive parts for each group.

    Args:
        balance: ``measured``, ``parameters``, or the numbers themselves (``3,5``).
        parts: the parts of a model, in order.
        images: a batch for measuring, [N, C, H, W].
        groups: number of devices or stages.
        load: as of a strategy.

    Raises:
        ValueError: there are fewer parts than groups, or the numbers in `balance` do
            not fit the parts or the groups.
    """
    if balance == "measured":
        return split_evenly(measure_parts(parts, images, load), groups)
    if balance == "parameters":
        sizes = [sum(p.numel() for p in part.parameters()) for part in parts]
        return split_evenly(sizes, groups)
    counts = [int(count) for count in balance.split(",")]
    if len(counts) != groups or sum(counts) != len(parts):
        raise ValueError(
            f"balance {balance} is not for {len(parts)} parts in {groups} groups"
        )
    return counts


def measure_parts(
    parts: Sequence[nn.Module], images: Tensor, load: Load
) -> list[float]:
    """Seconds that forward and backward of each part take on a batch.

    It is the fastest of some passes: other programs only make a pass slower.
    The parts do not change. Parts on the meta device are loaded one at a time.
    """
    seconds = []
    x = images
    for original in parts:
        on_meta = any(p.is_meta for p in (*original.parameters(), *original.buffers()))
        if on_meta:
            load(original, images.device)
        part = original if on_meta else copy.deepcopy(original)
        passes = []
        for _ in range(PASSES):
            # A clone, because autograd forbids in-place operations on a leaf tensor.
            source = x.detach().requires_grad_(x.is_floating_point()).clone()
            _wait(x)
            begun = time.perf_counter()
            y = part(source)
            y.sum().backward()
            _wait(y)
            passes.append(time.perf_counter() - begun)
        seconds.append(min(passes))
        x = y.detach()
        if on_meta:
            part.zero_grad()
            part.to("meta")
    return seconds


def _wait(x: Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize(x.device)
