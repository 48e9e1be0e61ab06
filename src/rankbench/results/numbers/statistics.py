"""Means over launches and their intervals. The unit of statistics is a launch.

Steps of one process are not independent: more steps do not reveal how processes differ.
So each launch counts as one value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95

# Fewer launches have no interval.
MIN_LAUNCHES = 4

# Of a number that people read.
DIGITS = 4


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

    def printed(self) -> tuple[Estimate, int | None]:
        """The estimate as documents print it, and its decimals.

        The width of the interval has two significant digits, and no number has more
        than four. Decimals may be negative; None: four digits of each number.
        """
        value = round_off(self.value)
        if self.low is None or self.high is None:
            return replace(self, value=value), None
        low, high = round_off(self.low), round_off(self.high)
        width, largest = high - low, max(map(abs, (value, low, high)))
        if not (0 < width < math.inf and largest < math.inf):
            return replace(self, value=value, low=low, high=high), None
        places = min(1 - _exponent(width), DIGITS - 1 - _exponent(largest))
        value, low, high = (round(end, places) for end in (value, low, high))
        return replace(self, value=value, low=low, high=high), places

    def scaled(self, factor: float) -> Estimate:
        """The estimate of ``factor`` (> 0) times the quantity."""
        assert factor > 0
        if self.low is None or self.high is None:
            return replace(self, value=self.value * factor)
        low, high = self.low * factor, self.high * factor
        return replace(self, value=self.value * factor, low=low, high=high)

    def inverse(self) -> Estimate:
        """The estimate of one over the quantity, which is positive."""
        if self.low is None or self.high is None:
            return Estimate(1 / self.value)
        return Estimate(1 / self.value, 1 / self.high, 1 / self.low)

    def to_json(self) -> dict[str, float | None]:
        """Value and ends with 4 significant digits, as all files show them."""
        ends = {"value": self.value, "low": self.low, "high": self.high}
        return {name: None if v is None else round_off(v) for name, v in ends.items()}


def round_off(value: float) -> float:
    """The value with 4 significant digits."""
    return float(f"{value:.{DIGITS}g}")


def _exponent(value: float) -> int:
    """The power of ten of the first digit."""
    return math.floor(math.log10(value))


def mean(values: Sequence[float] | NDArray[np.float64]) -> Estimate:
    """Arithmetic mean, with the interval of Student's t."""
    values = np.asarray(values, float)
    # Rounding must give no width to values that are all the same.
    same = values.min() == values.max()
    value, count = float(values[0] if same else values.mean()), len(values)
    if count < MIN_LAUNCHES:
        return Estimate(value)
    if same:
        return Estimate(value, value, value)
    error = float(values.std(ddof=1)) / math.sqrt(count)
    reach = quantile_of_t((1 + CONFIDENCE) / 2, count - 1) * error
    return Estimate(value, value - reach, value + reach)


def geometric_mean(values: Sequence[float] | NDArray[np.float64]) -> Estimate:
    """Geometric mean of positive values, with Student's interval of their logarithms.

    Times and rates scatter by factors; the mean of a rate is one over that of its time.
    """
    found = mean(np.log(values))
    if found.low is None or found.high is None:
        return Estimate(math.exp(found.value))
    return Estimate(math.exp(found.value), math.exp(found.low), math.exp(found.high))


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
    # It takes long to import. A GPU's first minutes pass without it: see tests/gpu.
    from scipy import special

    return float(special.stdtrit(freedom, share))


def spread(values: Sequence[float] | NDArray[np.float64]) -> float:
    """Interquartile range over the median: scatter without assuming a distribution."""
    low, center, high = np.quantile(values, (0.25, 0.5, 0.75))
    return float((high - low) / center)
