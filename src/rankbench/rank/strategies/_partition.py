"""Splits a sequence of model parts into groups of about equal cost."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rankbench.partition import split_evenly


def count_parts(
    balance: str, parts: Sequence[nn.Module], images: Tensor, groups: int
) -> list[int]:
    """The number of consecutive parts for each group.

    Args:
        balance: ``measured``, ``parameters``, or the numbers themselves (``3,5``).
        parts: the parts of a model, in order.
        images: a batch for measuring, [N, C, H, W].
        groups: number of devices or stages.

    Raises:
        ValueError: there are fewer parts than groups, or the numbers in `balance` do
            not fit the parts or the groups.
    """
    return share_out(balance, weigh_parts(balance, parts, images), len(parts), groups)


def share_out(
    balance: str, costs: Sequence[float], parts: int, groups: int
) -> list[int]:
    """As `count_parts`, by what `weigh_parts` has found."""
    if costs:
        return split_evenly(costs, groups)
    counts = [int(count) for count in balance.split(",")]
    if len(counts) != groups or sum(counts) != parts:
        raise ValueError(
            f"balance {balance} is not for {parts} parts in {groups} groups"
        )
    return counts


def weigh_parts(
    balance: str, parts: Sequence[nn.Module], images: Tensor
) -> list[float]:
    """Cost of each part: seconds or parameters; [] if `balance` gives the numbers."""
    if balance == "measured":
        return measure_parts(parts, images)
    if balance == "parameters":
        return [float(sum(p.numel() for p in part.parameters())) for part in parts]
    return []


def measure_parts(parts: Sequence[nn.Module], images: Tensor) -> list[float]:
    """Seconds that forward and backward of each part take on a batch.

    Copies of the parts are measured, so the parts themselves do not change.
    """
    seconds = []
    x = images
    for original in parts:
        part = copy.deepcopy(original)
        for _ in range(2):  # the first pass includes one-time setup
            # A clone, because autograd forbids in-place operations on a leaf tensor.
            source = x.detach().requires_grad_(x.is_floating_point()).clone()
            _wait(x)
            begun = time.perf_counter()
            y = part(source)
            y.sum().backward()
            _wait(y)
            taken = time.perf_counter() - begun
        seconds.append(taken)
        x = y.detach()
    return seconds


def _wait(x: Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize(x.device)
