"""Means over launches and their intervals. The unit of statistics is a launch.

Steps of one process are not independent: more steps do not reveal how processes differ.
So each launch counts as one value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import ModuleType

import numpy as np
from numpy.typing import NDArray
from scipy import special  # scipy.stats takes half a second to import.

CONFIDENCE = 0.95

# Fewer launches have no interval.
MIN_LAUNCHES = 4


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its interval, which needs 4 launches.

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


def mean(values: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """Arithmetic mean, with the interval of Student's t."""
    return _estimate(np.asarray(values, float), confidence)


def geometric_mean(values: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """Geometric mean of positive values, with Student's interval of their logarithms.

    Times and rates scatter by factors; the mean of a rate is one over that of its time.
    """
    found = _estimate(np.log(values), confidence)
    if found.low is None or found.high is None:
        return Estimate(math.exp(found.value))
    return Estimate(math.exp(found.value), math.exp(found.low), math.exp(found.high))


def difference_of_means(
    values: Sequence[float], others: Sequence[float], confidence: float = CONFIDENCE
) -> Estimate:
    """Difference of the means of two independent samples, with its interval (Welch)."""
    sides = [np.asarray(side, float) for side in (values, others)]
    value = float(sides[0].mean() - sides[1].mean())
    if min(map(len, sides)) < MIN_LAUNCHES:
        return Estimate(value)
    parts = np.array([side.var(ddof=1) / len(side) for side in sides])
    freedom = np.array([len(side) - 1 for side in sides])
    error, degrees = satterthwaite(parts, freedom)
    reach = quantile_of_t((1 + confidence) / 2, degrees) * error
    return Estimate(value, value - reach, value + reach)


def satterthwaite(
    parts: NDArray[np.float64], freedom: NDArray[np.float64]
) -> tuple[float, float]:
    """Standard error of a sum of independent parts, and its degrees of freedom.

    Satterthwaite, Biometrics Bulletin 2 (1946).

    Args:
        parts: variance of each part.
        freedom: degrees of freedom of each variance.
    """
    total = float(parts.sum())
    if not total:
        return 0.0, float(freedom.min())
    return math.sqrt(total), total**2 / float((parts**2 / freedom).sum())


def quantile_of_t(share: float, freedom: float) -> float:
    """The value that so large a share of Student's t distribution is below."""
    return float(special.stdtrit(freedom, share))


def spread(values: Sequence[float] | NDArray[np.float64]) -> float:
    """Interquartile range over the median: scatter without assuming a distribution."""
    low, center, high = np.quantile(values, (0.25, 0.5, 0.75))
    return float((high - low) / center)


def trend(values: Sequence[float]) -> float | None:
    """P-value of a trend in the order of the launches (Mann 1945, Kendall).

    A trend means that launches differ for another reason than chance. None below 4
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


def _stats() -> ModuleType:
    """scipy.stats, imported on demand: that takes half a second."""
    from scipy import stats

    module: ModuleType = stats
    return module


def _estimate(values: NDArray[np.float64], confidence: float) -> Estimate:
    # Rounding must give no width to values that are all the same.
    same = values.min() == values.max()
    value, count = float(values[0] if same else values.mean()), len(values)
    if count < MIN_LAUNCHES:
        return Estimate(value)
    if same:
        return Estimate(value, value, value)
    error = float(values.std(ddof=1)) / math.sqrt(count)
    reach = quantile_of_t((1 + confidence) / 2, count - 1) * error
    return Estimate(value, value - reach, value + reach)
