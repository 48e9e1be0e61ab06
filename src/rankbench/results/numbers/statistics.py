"""Medians and their intervals. The unit of statistics is a launch.

Steps of one process are not independent: more steps do not reveal how processes differ.
So each launch counts as one value. The interval of a median assumes nothing about the
distribution of these values, except that they are independent.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median as middle_of

import numpy as np
from numpy.typing import NDArray
from scipy import special  # scipy.stats takes half a second to import.

from rankbench.stopping import lower_rank

CONFIDENCE = 0.95
MIN_LAUNCHES = 6


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its interval, which needs 6 launches.

    Attributes:
        verdict: what documents show behind the interval, such as ``n.s.``.
    """

    value: float
    low: float | None = None
    high: float | None = None
    verdict: str = ""

    @property
    def interval(self) -> tuple[float, float] | None:
        if self.low is None or self.high is None:
            return None
        return self.low, self.high

    def may_be(self, value: float) -> bool:
        """Whether the interval holds the value; never without an interval."""
        if self.low is None or self.high is None:
            return False
        return self.low <= value <= self.high

    def scaled(self, factor: float) -> Estimate:
        """The estimate of ``factor`` (> 0) times the quantity."""
        assert factor > 0
        if self.low is None or self.high is None:
            return replace(self, value=self.value * factor)
        low, high = self.low * factor, self.high * factor
        return replace(self, value=self.value * factor, low=low, high=high)


def median(values: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """Median and its distribution-free interval between two order statistics.

    The number of values below the true median is binomial(n, 1/2), whatever their
    distribution. The interval takes the k-th smallest and k-th largest value, with the
    largest k that keeps at least the confidence; for 95 %, below 6 values there is
    none, and with 6 to 8 values the interval is their range. See Le Boudec,
    Performance Evaluation of Computer and Communication Systems (2010), chapter 2;
    Hoefler and Belli, Scientific Benchmarking of Parallel Computing Systems (SC'15),
    recommend it in its normal approximation, this is the exact form.
    """
    ordered = sorted(values)
    count = len(ordered)
    center = float(middle_of(ordered))
    rank = _lower_rank(count, confidence)
    if rank == 0:
        return Estimate(center)
    return Estimate(center, ordered[rank - 1], ordered[count - rank])


def ratio_of_medians(
    above: Sequence[float], below: Sequence[float], confidence: float = CONFIDENCE
) -> Estimate:
    """Ratio of the medians of two independent samples, with its interval.

    On the scale of logarithms the distances from each median to the ends of its own
    interval add like the sides of a right triangle (Zou and Donner, Statistics in
    Medicine 27, 2008: recovering variances from intervals). That is exact for many
    launches; for few, `benchmarks/comparing.py` shows the coverage. It is the ratio of
    two summaries, never a summary of ratios (Hoefler and Belli, SC'15, rule 4). No
    interval if either side has less than 6 launches.

    Args:
        above, below: positive.
    """
    value = float(np.median(above) / np.median(below))
    if min(len(above), len(below)) < MIN_LAUNCHES:
        return Estimate(value)
    above_down, above_up = _log_margins(above, confidence)
    below_down, below_up = _log_margins(below, confidence)
    down, up = math.hypot(above_down, below_up), math.hypot(above_up, below_down)
    if math.isinf(down):
        return Estimate(value)
    return Estimate(value, value * math.exp(-down), value * math.exp(up))


def difference_of_medians(
    above: Sequence[float], below: Sequence[float], confidence: float = CONFIDENCE
) -> Estimate:
    """Difference of the medians of two independent samples, as `ratio_of_medians`."""
    value = float(np.median(above) - np.median(below))
    if min(len(above), len(below)) < MIN_LAUNCHES:
        return Estimate(value)
    above_down, above_up = _margins(above, confidence)
    below_down, below_up = _margins(below, confidence)
    down, up = math.hypot(above_down, below_up), math.hypot(above_up, below_down)
    return (
        Estimate(value)
        if math.isinf(down)
        else Estimate(value, value - down, value + up)
    )


def spread(values: Sequence[float] | NDArray[np.float64]) -> float:
    """Interquartile range over the median: scatter without assuming a distribution."""
    low, center, high = np.quantile(values, (0.25, 0.5, 0.75))
    return float((high - low) / center)


def _log_margins(values: Sequence[float], confidence: float) -> tuple[float, float]:
    """As `_margins`, in logarithms."""
    down, up = _margins(np.log(values), confidence)
    return down, up


def _margins(
    values: Sequence[float] | NDArray[np.float64], confidence: float
) -> tuple[float, float]:
    """Distances from the median to both ends of its interval.

    The ends lie between two order statistics each, where the confidence is very nearly
    95 % for any distribution (Hettmansperger and Sheather, Statistics & Probability
    Letters 4, 1986). Those of `median` have more than that, up to 98 %; two such
    margins would make a ratio's interval half again as wide as it needs to be.
    """
    ordered = np.sort(values)
    count = len(ordered)
    rank, weight = _lower_rank(count, confidence), _inner_weight(count, confidence)
    if rank == 0:
        # Too few launches for this confidence.
        return math.inf, math.inf
    low = (1 - weight) * ordered[rank - 1] + weight * ordered[rank]
    high = (1 - weight) * ordered[count - rank] + weight * ordered[count - rank - 1]
    center = float(np.median(values))
    return center - float(low), float(high) - center


@functools.cache
def _inner_weight(count: int, confidence: float) -> float:
    """Position of the ends between the outer and the inner order statistics."""
    rank = _lower_rank(count, confidence)
    if rank == 0:
        return 0.0
    outer, inner = 1 - 2 * _share_up_to(count)[[rank - 1, rank]]
    surplus = (outer - confidence) / (outer - inner)
    return float((count - rank) * surplus / (rank + (count - 2 * rank) * surplus))


@functools.cache
def _lower_rank(count: int, confidence: float) -> int:
    """`rankbench.stopping.lower_rank`, remembered."""
    return lower_rank(count, confidence)


def _share_up_to(count: int) -> NDArray[np.float64]:
    """The distribution function of binomial(count, 1/2), from 0 to `count`."""
    found: NDArray[np.float64] = special.bdtr(np.arange(count + 1), count, 0.5)
    return found
