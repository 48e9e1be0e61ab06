"""What the ranks of a cell exchange bytes by: latency and bus bandwidth by size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from rankbench.results.elements.content import Section
from rankbench.results.elements.text import (
    Grid,
    Text,
    figures,
    round_figures,
    show_estimate,
)
from rankbench.results.numbers.statistics import Estimate, median
from rankbench.results.numbers.summary import Summary

TITLE = "Exchange between ranks"

ABOUT = (
    "Measured after the timed window of each launch, by the same processes over the "
    "same connections, with nothing else to do: the operations that the strategy uses. "
    "A call lasts until its slowest rank is done; medians over calls, then over "
    "launches. Bus bandwidth: bytes over time, times what an ideal algorithm sends of "
    "each byte over a link (nccl-tests: 2(n-1)/n for all_reduce, (n-1)/n for "
    "reduce_scatter and all_gather, 1 for the others), so that it stands beside the "
    "speed of the network whatever the number of ranks."
)

COLUMNS = (
    "cell",
    "operation",
    "bytes",
    *(f"{name}{end}" for name in ("us", "bus_gb_s") for end in ("", "_lo", "_hi")),
)

# Of n ranks; NVIDIA/nccl-tests, doc/PERFORMANCE.md.
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
        times_weights: how often the bytes of all weights go this way in a step; None
            if it is other bytes.
    """

    summary: Summary
    operation: str
    times_weights: float | None
    points: tuple[Point, ...]

    @property
    def cell(self) -> str:
        return self.summary.row.id

    @property
    def fastest(self) -> Point:
        """The size with the highest bus bandwidth."""
        return max(self.points, key=lambda point: point.bus_gb_s.value)

    def seconds_for(self, size: float) -> float:
        """Time of a call, between sizes and beyond them by straight lines."""
        sizes = [point.size for point in self.points]
        seconds = [point.us.value / 1e6 for point in self.points]
        if size > sizes[-1]:
            return float(seconds[-1] * size / sizes[-1])
        return float(np.interp(size, sizes, seconds))


def find_sweeps(summaries: Sequence[Summary]) -> list[Sweep]:
    """The sweeps of the rows that are ok, one for each operation."""
    return [sweep for summary in summaries for sweep in _find(summary)]


def make_frame(sweeps: Sequence[Sweep]) -> pd.DataFrame:
    """The columns of collectives.csv; numbers have 4 significant digits."""
    rows = [
        {
            "cell": sweep.cell,
            "operation": sweep.operation,
            "bytes": point.size,
            **_columns("us", point.us),
            **_columns("bus_gb_s", point.bus_gb_s),
        }
        for sweep in sweeps
        for point in sweep.points
    ]
    types = dict.fromkeys(COLUMNS[3:], "float64")
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(types)


def show(sweeps: Sequence[Sweep]) -> Section | None:
    """Nothing where no row has a sweep."""
    if not sweeps:
        return None
    columns = {
        "cell": False,
        "operation": False,
        "shortest call (us)": True,
        "of (KiB)": True,
        "highest bus bandwidth (GB/s)": True,
        "at (MiB)": True,
    }
    rows = [
        [
            Text(sweep.cell),
            Text(sweep.operation),
            show_estimate(sweep.points[0].us),
            Text(figures(sweep.points[0].size / 2**10)),
            show_estimate(sweep.fastest.bus_gb_s),
            Text(figures(sweep.fastest.size / 2**20)),
        ]
        for sweep in sweeps
    ]
    return Section(
        title=TITLE,
        about=ABOUT,
        files=("collectives.csv",),
        plots=[
            (
                "bandwidth",
                "Bus bandwidth against the size of a call, medians over launches.",
            )
        ],
        grids=[Grid(TITLE, columns, rows)],
    )


def _find(summary: Summary) -> list[Sweep]:
    launches = [
        launch.record.get("collectives") or [] for launch in summary.row.launches
    ]
    # Launch -> seconds of a call by operation and size.
    calls = [
        {
            (point["operation"], point["bytes"]): float(np.median(point["seconds"]))
            for point in launch
        }
        for launch in launches
    ]
    if not calls or not all(calls):
        return []
    # A launch with a slow moment may have stopped before the largest size.
    known = [key for key in calls[0] if all(key in launch for launch in calls)]
    times = {point["operation"]: point["times_weights"] for point in launches[0]}
    ranks = len(summary.row.launches[0].record["ranks"])
    return [
        Sweep(
            summary,
            operation,
            times[operation],
            tuple(
                _point(
                    operation,
                    size,
                    [launch[operation, size] for launch in calls],
                    ranks,
                )
                for name, size in known
                if name == operation
            ),
        )
        for operation in dict.fromkeys(name for name, _ in known)
    ]


def _point(operation: str, size: int, seconds: Sequence[float], ranks: int) -> Point:
    factor = _BUS.get(operation, lambda _: 1.0)(ranks)
    return Point(
        size,
        us=median([1e6 * one for one in seconds]),
        bus_gb_s=median([factor * size / one / 1e9 for one in seconds]),
    )


def _columns(name: str, number: Estimate) -> dict[str, float | None]:
    ends = {"": number.value, "_lo": number.low, "_hi": number.high}
    return {
        f"{name}{end}": None if value is None else round_figures(value)
        for end, value in ends.items()
    }
