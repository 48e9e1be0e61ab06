"""Splits a sequence of model parts into groups of about equal cost."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn


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
    if balance == "measured":
        return split_evenly(measure_parts(parts, images), groups)
    if balance == "parameters":
        sizes = [sum(p.numel() for p in part.parameters()) for part in parts]
        return split_evenly(sizes, groups)
    counts = [int(count) for count in balance.split(",")]
    if len(counts) != groups or sum(counts) != len(parts):
        raise ValueError(
            f"balance {balance} is not for {len(parts)} parts in {groups} groups"
        )
    return counts


def split_evenly(costs: Sequence[float], groups: int) -> list[int]:
    """The group sizes that make the most expensive group as cheap as possible.

    Dynamic programming over the end of the last group: O(groups x parts^2).

    Raises:
        ValueError: there are fewer parts than groups.
    """
    parts = len(costs)
    if parts < groups:
        raise ValueError(f"a model of {parts} parts cannot be split in {groups}")
    until = [0.0, *itertools.accumulate(costs)]
    # best[end] = (cost of the most expensive group, counts) for the first `end` parts.
    best = {end: (until[end], [end]) for end in range(1, parts + 1)}
    for number in range(2, groups + 1):
        longer = {}
        for end in range(number, parts + 1):
            cost, start = min(
                (max(best[start][0], until[end] - until[start]), start)
                for start in range(number - 1, end)
            )
            longer[end] = (cost, [*best[start][1], end - start])
        best = longer
    return best[parts][1]


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
