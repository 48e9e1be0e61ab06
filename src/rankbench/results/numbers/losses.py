"""Why a row is slower than its base promises: the difference of their steps, divided.

With efficiency 1, a step takes the time of the base's step, times the samples of this
step over those of the base's, over the devices. What it takes longer is the loss. Each
part of a step (`launches.py`) contributes what it takes longer than the same part of
the base's step. All are means over rounds, so the parts add up to the loss. How long
the bytes of a step take by themselves says a sweep of its collective operations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rankbench.results.numbers.hosts import find_late_host
from rankbench.results.numbers.launches import Values
from rankbench.results.numbers.result_set import Summary
from rankbench.results.numbers.statistics import Estimate, geometric_mean, mean

# In the order in which documents show them.
PARTS = ("computation", "waiting", "transfer", "input", "host", "unexplained")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What a row loses against its base; times in milliseconds.

    Attributes:
        cell, base: ids.
        step: mean over launches.
        promised: the step with efficiency 1.
        lost: `step` - `promised`, as a mean over rounds.
        parts: name in `PARTS` -> its share of `lost`; they add up to it.
        exchange: how long the bytes of a step take by themselves, from the sweep of the
            same row; None if there is no sweep, or if it is unknown what is exchanged.
        is_separate: whether communication is separate from computation.
        late: the slow rank, and the phase in which it is slow, if most launches agree.
        late_host: the host on which the slow rank always is, if it is far slower.
    """

    cell: str
    base: str
    step: float
    promised: float
    lost: Estimate
    parts: Mapping[str, Estimate]
    exchange: float | None
    is_separate: bool
    late: tuple[int, str] | None
    late_host: str | None = None

    @property
    def is_certain(self) -> bool:
        """Whether anything is lost at all."""
        return self.lost.low is not None and self.lost.low > 0


def find_losses(summaries: Sequence[Summary]) -> list[Loss]:
    """The losses of the rows on several devices that are compared with a base."""
    return [
        _find(row, base)
        for row in summaries
        if (base := row.efficiency_base) and base.id != row.id
        if row.devices > 1 and "efficiency" in row.numbers
    ]


def _find_exchange(row: Summary) -> float | None:
    """Milliseconds of the exchange of a step by itself; None if it is not known."""
    sweeps, model = find_sweeps(row), row.records[0]["model"]
    if not sweeps or not model or any(s.times_weights is None for s in sweeps):
        return None
    size = model["parameter_bytes"]
    times = ((sweep.times_weights or 0.0) * sweep.seconds_for(size) for sweep in sweeps)
    return 1e3 * sum(times)


def _find(row: Summary, base: Summary) -> Loss:
    exchange = _find_exchange(row)
    # The step that efficiency 1 promises, over that of the base.
    samples = [one.records[0]["shape"]["global_batch"] for one in (row, base)]
    factor = samples[0] / samples[1] / row.devices * base.devices
    above, below = _divide(row, exchange), _divide(base, None)
    lost = np.array([above[n] - factor * below[n] for n in above if n in below])
    # The slow rank that more than half of the launches name.
    late_host = find_late_host(row.counted)
    late, count = Counter(row.counted["late"]).most_common(1)[0]
    return Loss(
        cell=row.id,
        base=base.id,
        step=row.numbers["step_ms"].value,
        promised=factor * base.numbers["step_ms"].value,
        lost=mean(lost.sum(axis=1)),
        parts={name: mean(own) for name, own in zip(PARTS, lost.T, strict=True)},
        exchange=exchange,
        is_separate=bool(row.launches["is_separate"].all()),
        late=late if 2 * count > len(row.counted) else None,
        late_host=late_host[0] if late_host else None,
    )


def _divide(row: Summary, exchange: float | None) -> dict[Hashable, Values]:
    """Round -> the parts of a step, as `PARTS`.

    Args:
        exchange: what the bytes explain; the rest is unexplained. None: all.
    """
    sent = row.counted["exchange"]
    known = sent if exchange is None else sent.clip(upper=exchange)
    parts = row.counted.assign(transfer=known, unexplained=sent - known)[[*PARTS]]
    return dict(zip(row.counted["turn"], parts.to_numpy(), strict=True))


# --- sweeps of collective operations --------------------------------------------------


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
        every = len(self.summary.records[0]["ranks"])
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
    launches = [record["collectives"] for record in summary.records]
    if not launches or not all(launches):
        return []
    every = len(summary.records[0]["ranks"])
    # Operation, its ranks, times that it moves the weights, size -> us in each launch.
    calls: dict[tuple[str, int, float | None, int], list[float]] = {}
    for point in (point for launch in launches for point in launch):
        kind = point["operation"], point.get("ranks", every), point["times_weights"]
        own = calls.setdefault((*kind, point["bytes"]), [])
        own.append(1e6 * float(np.median(point["seconds"])))
    points: dict[tuple[str, int, float | None], list[Point]] = {}
    for (operation, ranks, times, size), each in calls.items():
        # A launch with a slow moment may have stopped before the largest size.
        if len(each) == len(launches):
            us = geometric_mean(each)
            factor = _BUS.get(operation, lambda _: 1.0)(ranks)
            bus = us.inverse().scaled(factor * size / 1e3)
            found = points.setdefault((operation, ranks, times), [])
            found.append(Point(size, us, bus))
    return [Sweep(summary, *kind, tuple(own)) for kind, own in points.items()]
