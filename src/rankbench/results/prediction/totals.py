"""Predict throughput from throughput alone, as of a published table or of a script.

Three models go through the last measured point; the prediction is the geometric mean of
theirs. Each is wrong where another one is right: the first never loses efficiency, the
power law goes on losing it at the same rate, and the third lies between. Means with
equal weights are hard to beat where the past of a series is short (Timmermann, Forecast
Combinations, in: Handbook of Economic Forecasting 1, 2006). `benchmarks/foresight.py`
compares them with what else was tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Log error per doubling of devices that is expected of a series without a past.
_EXPECTED = 0.1

# Devices and throughput of each point, devices of the target -> throughput.
Model = Callable[[NDArray[np.float64], NDArray[np.float64], float], float]


@dataclass(frozen=True, slots=True)
class Point:
    """Throughput, in any unit, with so many devices."""

    devices: float
    throughput: float


@dataclass(frozen=True, slots=True)
class Guess:
    """A predicted throughput.

    Attributes:
        value: in the unit of the points.
        doublings: how often the devices of the last point double up to the target.
        risk: log error that one doubling may bring, up to a factor that is the same
            for all series.
    """

    value: float
    doublings: float
    risk: float


def lasting(p: NDArray[np.float64], y: NDArray[np.float64], target: float) -> float:
    """The efficiency of the last point lasts."""
    return float(y[-1] * target / p[-1])


def power_law(p: NDArray[np.float64], y: NDArray[np.float64], target: float) -> float:
    """Efficiency falls by the same factor with each doubling."""
    slope = np.polyfit(np.log(p), np.log(y), 1)[0]
    return float(y[-1] * (target / p[-1]) ** slope)


def growing(p: NDArray[np.float64], y: NDArray[np.float64], target: float) -> float:
    """Time per sample and device grows by the same amount with each doubling.

    As collectives in a tree do: Hoefler, Gropp, Thakur and Traeff, Toward Performance
    Models of MPI Implementations (EuroMPI 2010).
    """
    doublings, times = np.log2(p), p / y
    slope = max(0.0, float(np.polyfit(doublings, times, 1)[0]))
    last = float(times[-1]) + slope * math.log2(target / p[-1])
    return target / last


MEMBERS: Mapping[str, Model] = {
    "lasting efficiency": lasting,
    "power law": power_law,
    "time grows with log P": growing,
}


def ensemble(
    p: NDArray[np.float64], y: NDArray[np.float64], target: float
) -> tuple[float, float]:
    """Log of the prediction, and how far apart power law and lasting efficiency are."""
    logs = [math.log(model(p, y, target)) for model in MEMBERS.values()]
    return sum(logs) / len(logs), abs(logs[0] - logs[1])


def guess(points: Sequence[Point], devices: float) -> Guess:
    """Predict from points on at least two scales.

    Args:
        points: by ascending devices, all different.
        devices: of the target, more than any point has.

    Raises:
        ValueError: there are fewer than two points.
    """
    p, y = as_arrays(points)
    if len(p) < 2:
        raise ValueError("one scale alone does not show how a series scales")
    doublings = math.log2(devices / p[-1])
    center, apart = ensemble(p, y, devices)
    risk = _EXPECTED + _missed(p, y) + apart / doublings
    return Guess(math.exp(center), doublings, risk)


def as_arrays(
    points: Sequence[Point],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Devices and throughputs, [points] each."""
    return (
        np.array([one.devices for one in points], dtype=np.float64),
        np.array([one.throughput for one in points], dtype=np.float64),
    )


def _missed(p: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Mean log error per doubling of the ensemble within the series itself."""
    errors = [
        abs(ensemble(p[:known], y[:known], p[target])[0] - math.log(y[target]))
        / math.log2(p[target] / p[known - 1])
        for known in range(2, len(p))
        for target in range(known, len(p))
    ]
    return float(np.mean(errors)) if errors else _EXPECTED
