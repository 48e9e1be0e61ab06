"""A power law of the throughput alone, and how far off that may be.

Each doubling of the devices costs the same share of efficiency, from the last measured
point on. It never gains any: a series that was superlinear does not stay so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rankbench.results.numbers.statistics import Estimate

# How far the truth may lie below and above, as logarithms per doubling of devices: 95 %
# of the points of 94 published series lie within them, each source alike.
# `benchmarks/foresight.py` learns them.
MISSES = (0.265, 0.319)

# A doubling of devices raises the efficiency by this factor at most.
_MOST_GAIN = 1.1


def predict_by_law(
    known: Sequence[tuple[float, float]],
    devices: float,
    noise: float,
    misses: tuple[float, float] = MISSES,
) -> Estimate:
    """The throughput of more devices, with its 95 % interval.

    Args:
        known: devices and throughput on at least two scales, by ascending devices.
        devices: of the target.
        noise: log error of the measured points themselves.
        misses: see `MISSES`.
    """
    counts, rates = np.array(known).T
    slope = min(1.0, float(np.polyfit(np.log(counts), np.log(rates), 1)[0]))
    more = devices / float(counts[-1])
    doublings = math.log2(more)
    value = float(rates[-1]) * more**slope
    found = find_interval(value, doublings, misses, noise)
    most = float(rates[-1]) * more * _MOST_GAIN**doublings * math.exp(noise)
    assert found.high is not None
    return Estimate(value, found.low, min(found.high, most))


def find_interval(
    value: float, doublings: float, misses: tuple[float, float], noise: float
) -> Estimate:
    """A prediction with its 95 % interval, which widens with the distance.

    Args:
        doublings: how often the devices of the last point double up to the target.
        misses: log of how far the truth may lie below and above, per doubling.
        noise: log error of the measured points themselves.
    """
    below, above = (math.hypot(doublings * miss, noise) for miss in misses)
    return Estimate(value, value * math.exp(-below), value * math.exp(above))
