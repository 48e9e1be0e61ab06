"""Whether two samples of launches differ: one rank statistic, shown in three ways.

Of all pairs of a launch of one side and a launch of the other, in how many is the first
faster? Mann and Whitney's test asks whether that share could be 1/2 by chance; the
share itself is the size of the effect (Vargha and Delaney, 2000); and the ratios that
the test would not reject are the interval of the ratio (Hodges and Lehmann, 1963). The
test holds its level if both sides have the same distribution, whichever it is; if one
side scatters more, it does so approximately. Interval and test of one cell agree. The
p-values of many cells are corrected for their number and the intervals are not, so a
cell that is not called different may have an interval without 1.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from rankbench.results.numbers.statistics import CONFIDENCE, MIN_LAUNCHES, Estimate

# Up to this size the exact distribution is cheap; beyond it, the normal approximation
# is as good.
_EXACT = 60

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Difference:
    """How one sample differs from another.

    Attributes:
        ratio: median over all pairs of a launch and a launch of the other side of
            their ratio; it has an interval from 6 launches on.
        superiority: share of the pairs in which this side is larger, 0 to 1. Half of
            the ties count.
        p_value: probability of a difference this large or larger if the true one is
            within the margin. None below 6 launches.
        equal: probability of a ratio as near to 1 as this if the true one is outside
            of the margin of equality. None below 6 launches.
    """

    ratio: Estimate
    superiority: float
    p_value: float | None
    equal: float | None = None


def differ(
    values: Sequence[float],
    others: Sequence[float],
    *,
    confidence: float = CONFIDENCE,
    margin: float = 0.0,
    within: float | None = None,
) -> Difference:
    """Compare two independent samples.

    Args:
        values, others: positive, one number for each launch.
        confidence: of the interval.
        margin: relative differences up to this one are none: 0.03 for three percent.
        within: two sides that differ by less are equal; None does not ask.
    """
    above, below = np.asarray(values, float), np.asarray(others, float)
    ratios = np.divide.outer(above, below)
    wins = (ratios > 1).mean() + (ratios == 1).mean() / 2
    if min(len(above), len(below)) < MIN_LAUNCHES:
        return Difference(Estimate(float(np.median(ratios))), float(wins), None)
    estimate = find_ratio(above, below, confidence)
    p_value = _p_value(above, below, margin)
    equal = None if within is None else is_equal(above, below, within)
    return Difference(estimate, float(wins), p_value, equal)


def find_ratio(
    values: Sequence[float] | Values,
    others: Sequence[float] | Values,
    confidence: float = CONFIDENCE,
) -> Estimate:
    """The median ratio of all pairs, and the ratios that the test would not reject.

    There is no interval if no order of so few values is rarer than chance allows.

    Args:
        values, others: positive.
    """
    ratios = np.sort(np.divide.outer(values, others), axis=None)
    rank = _fewest_wins(len(values), len(others), 1 - confidence)
    ends = (float(ratios[rank - 1]), float(ratios[-rank])) if rank else ()
    return Estimate(float(np.median(ratios)), *ends)


def is_equal(
    values: Sequence[float] | Values, others: Sequence[float] | Values, within: float
) -> float:
    """P-value of two one-sided tests (Schuirmann 1987) of equality within a margin."""
    above, below = np.asarray(values, float), np.asarray(others, float)
    high = _test(above / (1 + within), below, "less")
    return max(high, _test(above * (1 + within), below, "greater"))


def mann_whitney(
    values: Sequence[float], others: Sequence[float], *, side: str = "two-sided"
) -> float:
    """P-value of Mann and Whitney's test.

    Args:
        values, others: one number for each launch.
        side: ``two-sided``, or what `values` may be: ``less`` or ``greater``.
    """
    return _test(np.asarray(values, float), np.asarray(others, float), side)


def trend(values: Sequence[float]) -> float | None:
    """P-value of a trend in the order of the launches (Mann 1945, Kendall).

    A trend means that launches differ for another reason than chance. None below 6
    launches.
    """
    if len(values) < MIN_LAUNCHES or min(values) == max(values):
        return None
    return float(_stats().kendalltau(range(len(values)), values).pvalue)


def adjust(p_values: Sequence[float]) -> list[float]:
    """P-values of many cells, such that few of the differences found are false.

    Benjamini and Hochberg (1995): of the cells that are called different at level a, at
    most the share a is so by chance on average; where nothing has changed at all, even
    one such cell is found with probability a at most. Holm's correction would bound
    that for every run; it would miss more of a change that hits many cells at once,
    which is what another version of a library does.
    """
    if not p_values:
        return []
    found: list[float] = _stats().false_discovery_control(p_values).tolist()
    return found


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values of many cells, such that one false verdict among all has the level.

    Holm, Scandinavian Journal of Statistics 6 (1979): the k-th smallest of n is
    multiplied by n - k + 1.
    """
    order = np.argsort(p_values, kind="stable")
    found, largest = [0.0] * len(p_values), 0.0
    for place, index in enumerate(order):
        largest = max(largest, (len(p_values) - place) * p_values[index])
        found[index] = min(1.0, largest)
    return found


def can_be_found(count: int, other: int, *, level: float, cells: int) -> bool:
    """Whether so many launches can show a change of one cell among many.

    With few launches even complete separation of both sides may be chance.
    """
    return 2 / math.comb(count + other, count) <= level / cells


def _stats() -> ModuleType:
    """scipy.stats, imported on demand: that takes half a second."""
    from scipy import stats

    module: ModuleType = stats
    return module


def _p_value(above: Values, below: Values, margin: float) -> float:
    """Two-sided: the smaller chance beyond either end of the margin, doubled."""
    slower = _test(above / (1 - margin), below, "less")
    faster = _test(above * (1 - margin), below, "greater")
    return min(1.0, 2 * min(slower, faster))


def _test(above: Values, below: Values, alternative: str) -> float:
    tied = len(np.intersect1d(above, below)) > 0
    if tied and above.min() == above.max() == below.min() == below.max():
        return 1.0
    if tied:
        test = _stats().mannwhitneyu(
            above, below, alternative=alternative, method="asymptotic"
        )
        return float(test.pvalue)
    wins = int((above[:, None] > below).sum())
    return _chance(wins, len(above), len(below), alternative)


@functools.cache
def _chance(wins: int, count: int, other: int, alternative: str) -> float:
    """P-value of a number of won pairs, without ties; tables have few of them."""
    whole, rest = divmod(wins, other)
    above = [other] * whole + [rest - 0.5] + [-1] * (count - whole - 1)
    test = _stats().mannwhitneyu(
        above[:count],
        range(other),
        alternative=alternative,
        method=_method(count, other),
    )
    return float(test.pvalue)


def _method(count: int, other: int) -> str:
    return "exact" if max(count, other) <= _EXACT else "asymptotic"


@functools.cache
def _fewest_wins(count: int, other: int, level: float) -> int:
    """The smallest number of won pairs that is not significant at this level."""

    def is_chance(wins: int) -> bool:
        return _chance(wins, count, other, "two-sided") > level

    return bisect.bisect_left(range(count * other // 2), True, key=is_chance)
