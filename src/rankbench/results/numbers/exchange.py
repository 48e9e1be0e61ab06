"""Latency and bus bandwidth of the collective operations of a cell, by size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rankbench.results.numbers.statistics import Estimate, geometric_mean

if TYPE_CHECKING:
    from rankbench.results.numbers.summary import Summary

# Factors for n ranks, from NVIDIA/nccl-tests, doc/PERFORMANCE.md.
_BUS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
}


@dataclass(frozen=True, slots=True)
class Point:
    """One size of an operation.

    Attributes:
        size: bytes of the whole tensor.
        us: microseconds of a call.
        bus_gb_s: bus bandwidth, 10^9 bytes per second.
    """

    size: int
    us: Estimate
    bus_gb_s: Estimate


@dataclass(frozen=True, slots=True)
class Sweep:
    """One operation of a cell, by size.

    Attributes:
        ranks: number of ranks that take part: not all, if it runs within groups.
        times_weights: how many times per step the operation moves a volume equal to the
            weights of the model; None if the volume is something else.
    """

    summary: Summary
    operation: str
    ranks: int
    times_weights: float | None
    points: tuple[Point, ...]

    @property
    def title(self) -> str:
        """The operation, and the number of ranks if it runs within groups."""
        every = len(self.summary.launches[0].record["ranks"])
        within = "" if self.ranks == every else f" ({self.ranks} ranks)"
        return f"{self.operation}{within}"

    @property
    def cell(self) -> str:
        return self.summary.id

    @property
    def fastest(self) -> Point:
        """The size with the highest bus bandwidth."""
        return max(self.points, key=lambda point: point.bus_gb_s.value)

    def seconds_for(self, size: float) -> float:
        """Time of a call of any size, by linear interpolation and extrapolation."""
        sizes = [point.size for point in self.points]
        seconds = [point.us.value / 1e6 for point in self.points]
        if size > sizes[-1]:
            return float(seconds[-1] * size / sizes[-1])
        return float(np.interp(size, sizes, seconds))


def find_sweeps(summary: Summary) -> list[Sweep]:
    """One sweep for each operation of a row; none unless it is ok."""
    launches = [launch.record.get("collectives") or [] for launch in summary.launches]
    if not launches or not all(launches):
        return []
    every = len(summary.launches[0].record["ranks"])

    def group_of(point: Mapping[str, Any]) -> tuple[str, int]:
        return point["operation"], point.get("ranks", every)

    # Launch -> seconds of a call by operation, ranks and size.
    calls = [
        {
            (*group_of(point), point["bytes"]): float(np.median(point["seconds"]))
            for point in launch
        }
        for launch in launches
    ]
    # A launch with a slow moment may have stopped before the largest size.
    known = [key for key in calls[0] if all(key in launch for launch in calls)]
    times = {group_of(point): point["times_weights"] for point in launches[0]}
    sweeps = []
    for group in dict.fromkeys(key[:2] for key in known):
        operation, ranks = group
        factor, points = _BUS.get(operation, lambda _: 1.0)(ranks), []
        for size in [key[2] for key in known if key[:2] == group]:
            us = geometric_mean([1e6 * launch[*group, size] for launch in calls])
            bus = us.inverse().scaled(factor * size / 1e3)
            points.append(Point(size, us, bus))
        sweeps.append(Sweep(summary, operation, ranks, times[group], tuple(points)))
    return sweeps
