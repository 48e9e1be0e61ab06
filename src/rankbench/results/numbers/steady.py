"""When a launch has warmed up: the change points of its step times.

A step that follows others is never independent of them, and a machine knows other
changes of pace than its warm-up. So a level counts as another one only where it is told
apart with autocorrelation allowed for, and differs by enough to matter.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy import special

# Steps below which no level can be told from noise: the cell's own warm-up holds.
FEWEST_STEPS = 40

# A level is another one if its median step takes so much longer, or shorter.
SHIFT = 0.05

# Of more steps, medians of neighbors: a launch is judged in about a millisecond.
_BLOCKS = 400
_SHORTEST = 8
_ALPHA = 0.001
_MOST_CORRELATED = 0.95

Values = NDArray[np.float64]


def find_warmup(seconds: Values, fixed: int) -> int | None:
    """Steps before the steady state: the levels before the last lasting one.

    Args:
        seconds: of each step, the warm-up steps that the cell asks for first.
        fixed: how many those are. They are never fewer, and it stays with them where
            there are too few steps to judge.

    Returns:
        at least `fixed`; None if there is no steady state: the pace that the launch
        ends with holds for less than half of the steps after `fixed`.
    """
    if len(seconds) < FEWEST_STEPS:
        return fixed
    size = math.ceil(len(seconds) / _BLOCKS)
    logs = np.log(np.maximum(_block_medians(seconds, size), np.finfo(float).tiny))
    borders = [0, *sorted(_change_points(logs, 0, len(logs))), len(logs)]
    levels = [float(np.median(logs[a:b])) for a, b in itertools.pairwise(borders)]
    lasting = len(levels) - 1
    while lasting > 0 and _is_alike(levels[lasting - 1], levels[-1]):
        lasting -= 1
    found = max(fixed, borders[lasting] * size)
    return found if 2 * (found - fixed) <= len(seconds) - fixed else None


def _change_points(values: Values, begin: int, end: int) -> Iterator[int]:
    """Binary segmentation: the likeliest place, then those on either side of it."""
    part = values[begin:end]
    place = _split(part)
    if place is None:
        return
    yield begin + place
    yield from _change_points(values, begin, begin + place)
    yield from _change_points(values, begin + place, end)


def _split(values: Values) -> int | None:
    """The place that parts two levels best, if they are told apart.

    The rank sum before each place (Wilcoxon), its variance inflated for the
    autocorrelation within the parts; of a part that holds several levels that would be
    too much, so the lesser one counts. Bonferroni over the places.
    """
    count = len(values)
    places = np.arange(_SHORTEST, count - _SHORTEST + 1)
    if not len(places):
        return None
    ranks = _ranks(values)
    centered = np.cumsum(ranks - ranks.mean())[places - 1]
    scale = ranks.std() * np.sqrt(places * (count - places) / count)
    if not scale.all():
        return None
    distances = np.abs(centered) / scale
    best = int(np.argmax(distances))
    place = int(places[best])
    before, after = values[:place], values[place:]
    if _is_alike(float(np.median(before)), float(np.median(after))):
        return None
    lag = min(_autocorrelation(before), _autocorrelation(after))
    score = distances[best] / math.sqrt((1 + lag) / (1 - lag))
    chance = 2 * special.ndtr(-score) * len(places)
    return place if chance < _ALPHA else None


def _is_alike(one: float, other: float) -> bool:
    return abs(one - other) <= math.log1p(SHIFT)


def _autocorrelation(values: Values) -> float:
    """Of neighbors, by their ranks: 0 to 1."""
    ranks = _ranks(values)
    ranks = ranks - ranks.mean()
    square = float(ranks @ ranks)
    lag = float(ranks[1:] @ ranks[:-1]) / square if square else 0.0
    return min(max(lag, 0.0), _MOST_CORRELATED)


def _ranks(values: Values) -> Values:
    """From 1; equal values share the mean of theirs."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[places])


def _block_medians(values: Values, size: int) -> Values:
    """The median of each `size` neighbors; a rest at the end is left out."""
    count = len(values) // size
    return np.asarray(np.median(values[: count * size].reshape(count, size), axis=1))
