"""Find the end of the warm-up: the change points of the step times of a launch.

Steps depend on the steps before them, and a machine changes its pace for other reasons
than warm-up. So two levels are different only if a test that allows for autocorrelation
says so, and if they differ by enough to matter.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy import special

# With fewer steps, levels cannot be told from noise, so the cell's own warm-up is used.
FEWEST_STEPS = 40

# Levels differ if the median steps differ by more than this share.
SHIFT = 0.05

# More steps are reduced to medians of neighbors, so that a launch takes a millisecond.
_BLOCKS = 400
_SHORTEST = 8
_ALPHA = 0.001
_MOST_CORRELATED = 0.95

Values = NDArray[np.float64]


def find_warmup(seconds: Values, fixed: int) -> int | None:
    """The number of steps before the steady state.

    Args:
        seconds: of each step, the warm-up steps that the cell asks for first.
        fixed: the number of those warm-up steps. It is the result if there are too few
            steps to judge.

    Returns:
        at least `fixed`; None if there is no steady state: the pace that the launch
        ends with holds for less than half of the steps after `fixed`.
    """
    if len(seconds) < FEWEST_STEPS:
        return fixed
    size = math.ceil(len(seconds) / _BLOCKS)
    # The median of each block of neighbors; a remainder at the end is left out.
    blocks = seconds[: len(seconds) // size * size].reshape(-1, size)
    logs = np.log(np.maximum(np.median(blocks, axis=1), np.finfo(float).tiny))
    borders = [0, *sorted(_change_points(logs, 0, len(logs))), len(logs)]
    levels = [float(np.median(logs[a:b])) for a, b in itertools.pairwise(borders)]
    lasting = len(levels) - 1
    while lasting > 0 and _is_alike(levels[lasting - 1], levels[-1]):
        lasting -= 1
    found = max(fixed, borders[lasting] * size)
    return found if 2 * (found - fixed) <= len(seconds) - fixed else None


def _change_points(values: Values, begin: int, end: int) -> Iterator[int]:
    """Binary segmentation: the likeliest change point, then those on either side."""
    part = values[begin:end]
    place = _split(part)
    if place is None:
        return
    yield begin + place
    yield from _change_points(values, begin, begin + place)
    yield from _change_points(values, begin + place, end)


def _split(values: Values) -> int | None:
    """The place that separates two levels best; None if they do not differ.

    The statistic is the rank sum before each place (Wilcoxon). Its variance is inflated
    for the autocorrelation within the parts. A part that holds several levels has too
    much autocorrelation, so the smaller one counts. That is not conservative: parts
    whose autocorrelation is small by chance are divided too easily. Levels must also
    differ by `SHIFT`. Bonferroni corrects for the places.
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


def _is_alike(level: float, other: float) -> bool:
    return abs(level - other) <= math.log1p(SHIFT)


def _autocorrelation(values: Values) -> float:
    """Rank autocorrelation of neighbors, 0 to 1."""
    ranks = _ranks(values)
    ranks = ranks - ranks.mean()
    square = float(ranks @ ranks)
    lag = float(ranks[1:] @ ranks[:-1]) / square if square else 0.0
    return min(max(lag, 0.0), _MOST_CORRELATED)


def _ranks(values: Values) -> Values:
    """Ranks from 1; equal values share their mean rank."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[places])
