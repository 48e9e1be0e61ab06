"""When the level of a series of runs changed, by the brackets that all ratios have.

One value stands for a run: the median of the logarithms of its launches' throughput.
Launches of a run share its night, so a run is what scatters.

The runs after a place are compared with those before it, within seeded intervals
(Kovács, Bühlmann, Li and Munk, Biometrika 110, 2023), which also show a change that was
undone. The level changed at the place where the bracket of the ratio excludes 1 most
clearly; then either side is searched likewise. A bracket is Student's t of two samples
with a common scatter, so two runs on a side suffice. It holds together with those of
all places and cells: with 95 % confidence, no change of a store is false.

A segment has at least two runs. A single bad run counts like its neighbours (a filter
after Hampel), so that it neither makes a change nor hides one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from rankbench.results.numbers.fit import LogRatio, confidence_of_each
from rankbench.results.numbers.statistics import Estimate, quantile_of_t

Values = NDArray[np.float64]

# A segment of one run is a bad run, and no change.
MIN_RUNS = 2
# In fewer runs nothing is looked for.
MIN_SERIES = 8
# Of the filter for bad runs; the median step of values that are distributed normally.
_FAR, _STEP_OF_SCATTER = 3.0, 0.6745 * math.sqrt(2)


def find_breaks(
    values: Values, series: int = 1
) -> tuple[Sequence[int], Sequence[Estimate]]:
    """Find the changes of the level of a series.

    Args:
        values: logarithms, one for each run, in order of time; without bad runs.
        series: how many of this length are searched; all changes hold together.

    Returns:
        The first run of each segment but the first, and the ratio of each of these
        segments to the one before. Its bracket excludes 1.
    """
    places = sum(len(starts) * (n - 3) for n, starts in _seed_intervals(len(values)))
    confidence = confidence_of_each(series * places)
    breaks = list(_search(values, 0, len(values), confidence))
    while True:
        edges = [0, *breaks, len(values)]
        ratios = [
            _compare(values[a:b], values[b:c], confidence)
            for a, b, c in zip(edges, edges[1:], edges[2:], strict=False)
        ]
        # A change was found within an interval; it must hold between segments, too.
        gone = next((n for n, ratio in enumerate(ratios) if ratio.may_be(1.0)), None)
        if gone is None:
            return breaks, ratios
        del breaks[gone]


def _search(values: Values, begin: int, end: int, confidence: float) -> Iterator[int]:
    """Binary segmentation: the clearest change, and those on either side of it."""
    part, clearest, place = values[begin:end], 1.0, 0
    for length, starts in _seed_intervals(len(part)):
        inner = np.arange(MIN_RUNS, length - MIN_RUNS + 1)
        runs = part[starts[:, None] + np.arange(length)]  # [intervals, runs]
        runs = runs - runs.mean(axis=1, keepdims=True)
        left = np.cumsum(runs, axis=1)[:, inner - 1]
        between = left**2 * (length / (inner * (length - inner)))
        within = (runs**2).sum(axis=1, keepdims=True) - between
        student = np.sqrt(between * (length - 2) / np.maximum(within, 1e-18))
        # How far the bracket is from 1: its distance over its reach.
        score = student / quantile_of_t((1 + confidence) / 2, length - 2)
        row, column = np.unravel_index(score.argmax(), score.shape)
        if score[row, column] > clearest:
            clearest = float(score[row, column])
            place = begin + int(starts[row] + inner[column])
    if place:
        yield from _search(values, begin, place, confidence)
        yield place
        yield from _search(values, place, end, confidence)


def _compare(before: Values, after: Values, confidence: float) -> Estimate:
    """The ratio of two levels, whose runs scatter alike."""
    counts = len(before), len(after)
    freedom = sum(counts) - 2
    squares = sum(float(((side - side.mean()) ** 2).sum()) for side in (before, after))
    error = math.sqrt(max(squares, 1e-18) / freedom * sum(1 / n for n in counts))
    value = float(after.mean() - before.mean())
    return LogRatio(value, error, freedom, min(counts)).bracket(confidence)


def without_bad_runs(values: Sequence[float]) -> Values:
    """The series with the local median in place of values that stand alone.

    Such a value is far from both neighbours, and from the median of itself, the two
    before and the two after it (mirrored at the ends). Far is `_FAR` times the scatter
    of successive values.
    """
    series = np.asarray(values, float)
    if len(series) < MIN_SERIES:
        return series
    center = ndimage.median_filter(series, size=5, mode="mirror")
    steps = np.abs(np.diff(series))
    far = _FAR / _STEP_OF_SCATTER * float(np.median(steps))
    # The first and the last value have one neighbour.
    padded = np.pad(steps, 1, mode="edge")
    near = np.minimum(padded[:-1], padded[1:])
    alone = np.minimum(near, np.abs(series - center)) > far
    return np.where(alone & (far > 0), center, series)


@functools.cache
def _seed_intervals(count: int) -> list[tuple[int, NDArray[np.int64]]]:
    """Lengths of intervals, each half of the one before, and where they begin.

    Intervals of a length overlap by half, and one of them ends with the series.
    """
    found, length = [], count
    while length >= 2 * MIN_RUNS:
        starts = {*range(0, count - length + 1, max(1, length // 2)), count - length}
        found.append((length, np.array(sorted(starts))))
        length //= 2
    return found
