"""Medians, and how sure they are: the unit of statistics is a launch.

Steps of one process are not independent: more of them cannot reveal what differs from
process to process. So each launch counts as one value, and nothing is assumed about the
distribution of those values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

CONFIDENCE = 0.95
RESAMPLES = 9999
SEED = 20150101
MIN_LAUNCHES = 6


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its 95 % interval; without one where the launches are too few."""

    value: float
    low: float | None = None
    high: float | None = None

    def scaled(self, factor: float) -> Estimate:
        """The estimate of ``factor`` (> 0) times the quantity."""
        assert factor > 0
        if self.low is None or self.high is None:
            return Estimate(self.value * factor)
        return Estimate(self.value * factor, self.low * factor, self.high * factor)


def median(values: Sequence[float]) -> Estimate:
    """Median and its distribution-free interval between two order statistics.

    The number of values below the true median is binomial(n, 1/2), whatever their
    distribution. The interval takes the k-th smallest and k-th largest value, with the
    largest k that keeps at least 95 %; below 6 values there is none. See Le Boudec,
    Performance Evaluation of Computer and Communication Systems (2010), chapter 2;
    Hoefler and Belli, Scientific Benchmarking of Parallel Computing Systems (SC'15),
    recommend it in its normal approximation, this is the exact form.
    """
    ordered = sorted(values)
    count = len(ordered)
    center = float(np.median(ordered))
    rank = int(stats.binom.ppf((1 - CONFIDENCE) / 2, count, 0.5))
    if rank == 0:
        return Estimate(center)
    return Estimate(center, ordered[rank - 1], ordered[count - rank])


def ratio_of_medians(above: Sequence[float], below: Sequence[float]) -> Estimate:
    """Ratio of the medians of two independent samples, with a bootstrap interval.

    Percentile bootstrap that resamples launches on both sides (Efron and Tibshirani, An
    Introduction to the Bootstrap, 1993, chapter 13). It is the ratio of two summaries,
    never a summary of ratios (Hoefler and Belli, SC'15, rule 4). The seed is fixed: the
    same launches give the same digits. No interval if either side has less than 6.
    """
    value = float(np.median(above) / np.median(below))
    if min(len(above), len(below)) < MIN_LAUNCHES:
        return Estimate(value)
    found = stats.bootstrap(
        (above, below),
        _ratio,
        n_resamples=RESAMPLES,
        vectorized=True,
        paired=False,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(SEED),
    ).confidence_interval
    return Estimate(value, float(found.low), float(found.high))


def _ratio(
    above: NDArray[np.float64], below: NDArray[np.float64], axis: int
) -> NDArray[np.float64]:
    over, under = np.median(above, axis=axis), np.median(below, axis=axis)
    return np.asarray(over / under)
