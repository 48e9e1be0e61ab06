"""Splits consecutive parts into groups of about equal cost."""

from __future__ import annotations

import itertools
from collections.abc import Sequence


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
