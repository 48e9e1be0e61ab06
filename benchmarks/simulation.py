"""Coverage of the intervals on simulated launches, whose true values are known.

Each launch has its own level, drawn from a distribution like those of real launches.
Its steps scatter around that level and are correlated. The result of a launch is the
mean rate over its steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import signal

from rankbench.results.numbers.difference import differ
from rankbench.results.numbers.statistics import Estimate, median, ratio_of_medians

Values = NDArray[np.float64]

STEPS, CORRELATION, WITHIN, BETWEEN = 50, 0.8, 0.05, 0.02
_MANY = 100_000

# Distributions of the logarithm of a launch's level, with a scale of about 1.
LEVELS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Values]] = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "skewed": lambda rng, shape: rng.exponential(size=shape),
    "log-normal": lambda rng, shape: np.exp(0.8 * rng.normal(size=shape)),
    "heavy tail": lambda rng, shape: rng.standard_t(3, size=shape),
    "bimodal": lambda rng, shape: (
        0.3 * rng.normal(size=shape) + 3.0 * (rng.random(shape) < 0.3)
    ),
}

# Ratios: numerator, denominator, and how many times more the numerator scatters.
PAIRS = (
    ("skewed", "skewed", 1.0),
    ("bimodal", "bimodal", 1.0),
    ("skewed", "normal", 5.0),
    ("bimodal", "skewed", 1.0),
    ("bimodal", "normal", 5.0),
)


@dataclass(frozen=True)
class Coverage:
    """The coverage and the width of an interval.

    Attributes:
        what: name of the interval.
        launches: number of launches.
        hits: share of runs in which the interval contains the true value.
        excess: mean width of the interval / width of the middle 95 % of the estimates,
            minus 1.
    """

    what: str
    launches: int
    hits: float
    excess: float


def simulate(
    rng: np.random.Generator, kind: str, shape: tuple[int, int], scale: float
) -> Values:
    """Simulated samples/s of launches, [runs, launches]."""
    levels = np.exp(-scale * LEVELS[kind](rng, shape))
    noise = WITHIN * np.sqrt(1 - CORRELATION**2) * rng.normal(size=(*shape, STEPS))
    seconds = np.exp(signal.lfilter([1], [1, -CORRELATION], noise))
    return np.asarray(levels / seconds.mean(axis=2))


def draw_levels(
    rng: np.random.Generator, kind: str, shape: tuple[int, int], scatter: float
) -> Values:
    """Simulated samples/s with an interquartile range of `scatter` times the median."""
    low, high = np.quantile(LEVELS[kind](rng, (_MANY,)), (0.25, 0.75))
    return np.exp(-scatter / (high - low) * LEVELS[kind](rng, shape))


def coverages(runs: int, counts: tuple[int, ...], seed: int) -> Iterator[Coverage]:
    """Coverage for medians, for ratios of medians, and for the ratio of `compare`."""
    rng = np.random.default_rng(seed)
    truths = {kind: _true_median(rng, kind, BETWEEN) for kind in LEVELS}
    for count in counts:
        shape = runs, count
        for kind in LEVELS:
            samples = simulate(rng, kind, shape, BETWEEN)
            found = [median(sample) for sample in samples.tolist()]
            yield _cover(f"median, {kind}", count, found, truths[kind])
        for above, below, times in PAIRS:
            truth = truths[above] / _true_median(rng, below, BETWEEN / times)
            pairs = zip(
                simulate(rng, above, shape, BETWEEN).tolist(),
                simulate(rng, below, shape, BETWEEN / times).tolist(),
                strict=True,
            )
            found = [ratio_of_medians(a, b) for a, b in pairs]
            what = f"speedup, {above} over {below}"
            what += f" ({times:g} x less scatter)" if times != 1 else ""
            yield _cover(what, count, found, truth)
        for kind in LEVELS:
            new = 0.97 * simulate(rng, kind, shape, BETWEEN)
            old = simulate(rng, kind, shape, BETWEEN)
            found = [differ(a, b).ratio for a, b in zip(new, old, strict=True)]
            yield _cover(f"compare, {kind}", count, found, 0.97)


def _true_median(rng: np.random.Generator, kind: str, scale: float) -> float:
    return float(np.median(simulate(rng, kind, (1, _MANY), scale)))


def _cover(what: str, count: int, found: list[Estimate], truth: float) -> Coverage:
    values = np.array([one.value for one in found])
    ends = np.array([one.interval for one in found])
    hits = np.mean((ends[:, 0] <= truth) & (truth <= ends[:, 1]))
    low, high = np.quantile(values, (0.025, 0.975))
    excess = np.mean(ends[:, 1] - ends[:, 0]) / (high - low) - 1
    return Coverage(what, count, float(hits), float(excess))
