"""When the level of a series of runs changed: segments of equal level, and how sure.

One value stands for a run: the median of the logarithms of its launches' throughput.
Launches of a run share its night, so a run is what may be exchanged with another one.

`ruptures` (Truong, Oudre and Vayatis, Signal Processing 167, 2020) finds the best
segmentation for each number of changes. Tests determine that number, one after the
other, as Bai and Perron do (Econometrica 66, 1998): given some changes, is there a
further one within their segments? The statistic is the largest CUSUM over seeded
intervals (Kovács, Bühlmann, Li and Munk, Biometrika 110, 2023), which also sees a
change that was undone. Its distribution comes from permutations of whole runs within
the segments, so it assumes only that runs are exchangeable there. Because news matter
most, a second test looks only for a change in the last few runs: with fewer places to
look at, it needs fewer runs to be sure. Bonferroni's correction joins the two.

A segment has at least two runs. A single bad run counts like its neighbours (a filter
after Hampel), in the data as in each permutation, so that it neither makes a change nor
hides one.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

Values = NDArray[np.float64]
# Series -> one number for each.
Statistic = Callable[[Values], Values]

# A segment of one run is a bad run, and no change.
MIN_RUNS = 2
# In fewer runs no order of the values is rarer than 5 %: at 7 runs it is 2 / C(7, 3).
MIN_SERIES = 8
# A change within so many runs before the end is looked for by a test of its own.
_NEW_RUNS = 8
# After so many permutations as extreme as the data, more do not change the answer.
_ENOUGH = 20
_BATCH = 100
# Of the filter for bad runs; the median step of values that are distributed normally.
_FAR, _STEP_OF_SCATTER = 3.0, 0.6745 * math.sqrt(2)
# Values of permutations that are in memory at a time.
_AT_ONCE = 200_000


def chance_of_change(
    values: Sequence[float] | Values,
    breaks: Sequence[int] = (),
    *,
    seed: int,
    permutations: int,
) -> float:
    """P-value of a further change within the segments that the breaks delimit.

    It holds for any number of permutations. Drawing ends early if the p-value is
    large (Besag and Clifford, Biometrika 78, 1991).

    Args:
        values: one for each run, in order of time.
        breaks: ascending indices of the first run of each segment but the first.
        seed: of the permutations.
        permutations: how many to draw at most for each test, of which there are one or
            two: (1 or 2) / (permutations + 1) is the smallest p-value.
    """
    edges = [0, *breaks, len(values)]
    whole = np.asarray(values, float)
    long = [
        (a, b)
        for a, b in itertools.pairwise(edges)
        if b - a >= 2 * MIN_RUNS and np.ptp(whole[a:b]) > 0
    ]
    parts = [_standardise(whole[a:b]) for a, b in long]
    if not parts:
        return 1.0
    chances = [_chance(parts, _largest, seed, permutations)]
    # In a shorter segment, most places are near the end anyway.
    if long[-1][1] == len(values) and len(parts[-1]) > 2 * _NEW_RUNS:
        chances.append(_chance(parts[-1:], _largest_at_end, seed, permutations))
    return min(1.0, len(chances) * min(chances))


def _chance(
    parts: Sequence[Values], statistic: Statistic, seed: int, permutations: int
) -> float:
    """P-value of a statistic's largest value over some segments."""
    # Rounding must not tell equal statistics apart.
    seen = max(float(statistic(part[None])[0]) for part in parts) * (1 - 1e-9)
    rng = np.random.default_rng(seed)
    drawn = as_large = 0
    size = max(1, min(_BATCH, _AT_ONCE // max(map(len, parts))))
    while drawn < permutations:
        count = min(size, permutations - drawn)
        found = np.max(
            [statistic(_permute(rng, part, count)) for part in parts], axis=0
        )
        places = np.flatnonzero(found >= seen)
        if as_large + len(places) >= _ENOUGH:
            last = places[_ENOUGH - as_large - 1]
            return _ENOUGH / (drawn + int(last) + 1)
        as_large += len(places)
        drawn += count
    return (as_large + 1) / (drawn + 1)


def find_breaks(
    values: Sequence[float] | Values, *, level: float, seed: int, permutations: int
) -> list[int]:
    """The first run of each segment but the first, for a series that has a change.

    Args:
        values: one for each run, in order of time.
        level: of the test for each further change.
        seed, permutations: as for `chance_of_change`.
    """
    count = 1
    most = len(values) // MIN_RUNS - 1
    best = best_breaks(values, count)
    while count < most:
        further = chance_of_change(
            values, best, seed=seed + count, permutations=permutations
        )
        if further > level:
            break
        count += 1
        best = best_breaks(values, count)
    return best


def best_breaks(values: Sequence[float] | Values, count: int) -> list[int]:
    """The breaks that explain the values best, for a number of changes (> 0)."""
    import ruptures  # It takes half a second to import.

    signal = _without_bad_runs(np.asarray(values, float)[None])[0, :, None]
    search: Any = ruptures.KernelCPD(kernel="linear", min_size=MIN_RUNS)
    found: list[int] = search.fit(signal).predict(n_bkps=count)
    return [int(one) for one in found[:-1]]


def _standardise(values: Values) -> Values:
    """The values around 0 with scatter 1, whatever their order; not all are equal."""
    apart = values - np.median(values)
    scaled: Values = apart / np.abs(apart).mean()
    return scaled


def _without_bad_runs(series: Values) -> Values:
    """Each series with the local median in place of values that stand alone.

    Such a value is far from both neighbours, and from the median of itself, the two
    before and the two after it (mirrored at the ends). Far is `_FAR` times the scatter
    of successive values.

    Args:
        series: [series, runs].
    """
    center = ndimage.median_filter(series, size=(1, 5), mode="mirror")
    steps = np.abs(np.diff(series, axis=1))
    far = _FAR / _STEP_OF_SCATTER * np.median(steps, axis=1, keepdims=True)
    # The first and the last value have one neighbour.
    padded = np.pad(steps, ((0, 0), (1, 1)), mode="edge")
    near = np.minimum(padded[:, :-1], padded[:, 1:])
    alone = np.minimum(near, np.abs(series - center)) > far
    return np.where(alone & (far > 0), center, series)


def _permute(rng: np.random.Generator, values: Values, count: int) -> Values:
    """Permutations of the values: [count, runs]."""
    return rng.permuted(np.tile(values, (count, 1)), axis=1)


def _largest(series: Values) -> Values:
    """The largest squared CUSUM of each series over all seeded intervals.

    Args:
        series: [series, runs].
    """
    series = _without_bad_runs(series)
    count = series.shape[1]
    sums = np.zeros((len(series), count + 1))
    np.cumsum(series, axis=1, out=sums[:, 1:])
    found = np.zeros(len(series))
    for length, starts in _seeded(count):
        inner = np.arange(MIN_RUNS, length - MIN_RUNS + 1)
        begin = sums[:, starts]
        whole = sums[:, starts + length] - begin
        left = sums[:, starts[:, None] + inner] - begin[:, :, None]
        left -= whole[:, :, None] * (inner / length)
        left *= left
        left *= length / (inner * (length - inner))
        np.maximum(found, left.max(axis=(1, 2)), out=found)
    return found


def _largest_at_end(series: Values) -> Values:
    """The largest squared CUSUM of each series for a change in its last few runs.

    Args:
        series: [series, runs].
    """
    series = _without_bad_runs(series)
    count = series.shape[1]
    new = np.arange(MIN_RUNS, min(_NEW_RUNS, count // 2) + 1)
    sums = np.cumsum(series, axis=1)
    apart = sums[:, count - new - 1] - sums[:, -1:] * ((count - new) / count)
    found: Values = (apart**2 * (count / (new * (count - new)))).max(axis=1)
    return found


@functools.cache
def _seeded(count: int) -> list[tuple[int, NDArray[np.int64]]]:
    """Lengths of intervals, each half of the one before, and where they begin.

    Intervals of a length overlap by half, and one of them ends with the series.
    """
    found, length = [], count
    while length >= 2 * MIN_RUNS:
        starts = {*range(0, count - length + 1, max(1, length // 2)), count - length}
        found.append((length, np.array(sorted(starts))))
        length //= 2
    return found
