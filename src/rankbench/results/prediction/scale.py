"""What was measured of a series at one of its scales, as predictions need it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rankbench.cell import Shape
from rankbench.record import Record
from rankbench.results.numbers.exchange import find_sweeps
from rankbench.results.numbers.measures import EXCHANGE
from rankbench.results.numbers.statistics import Estimate, geometric_mean
from rankbench.results.prediction.network import Call

if TYPE_CHECKING:
    from rankbench.results.numbers.summary import Summary

# Of so many steps of a launch, at most, the ranks are compared.
_STEPS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """A pipeline that has recorded its stages.

    Attributes:
        forward, backward: seconds of a micro-batch, all stages together.
        update: seconds of the optimizer on the slowest rank.
        costs: of each part of the model, in any unit, as the split weighed them.
        counts: parts of each stage.
    """

    schedule: str
    microbatches: int
    forward: float
    backward: float
    update: float
    costs: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A row of a series. Times are in seconds, medians over launches.

    Attributes:
        shape: its ranks, devices and samples.
        throughput: samples/s, also of language models.
        work: of a typical rank in a step, without waiting for others.
        exposed: communication that no computation hides.
        is_separate: whether `work` is free of communication.
        has_exchange: whether there is a phase for exposed communication.
        window: the part of the step that may hide communication.
        late: what the ranks need more or less than a typical rank, of each step.
        operations: communication operation -> how many times it moves the weights in a
            step; empty if that is not known.
        weights: bytes of the model.
        buckets: bytes of what DDP sends together, and its seconds since the start of
            backward; empty if not recorded.
        stages: None if this is no pipeline, or if it recorded too little.
        calls: times of the operations by themselves.
        memory: MiB of the rank that used most.
    """

    summary: Summary
    shape: Shape
    devices: int
    throughput: Estimate
    work: float
    exposed: float
    is_separate: bool
    has_exchange: bool
    window: float
    late: NDArray[np.float64]
    operations: Mapping[str, float]
    weights: float
    buckets: tuple[tuple[float, float], ...]
    stages: Stages | None
    calls: tuple[Call, ...]
    memory: float

    @property
    def step(self) -> float:
        return self.shape.global_batch / self.throughput.value

    @property
    def noise(self) -> float:
        """Log of how far the median may be off; 0 if there is no interval."""
        ends = self.throughput.interval
        return 0.0 if ends is None else math.log(ends[1] / ends[0]) / 2


def read_scale(summary: Summary) -> Scale:
    """Reduce a row that is ok."""
    sweeps = find_sweeps(summary)
    records = [launch.record for launch in summary.launches]
    parts = [launch.parts for launch in summary.measures]
    times = [sweep.times_weights for sweep in sweeps]
    rates = [launch.throughput for launch in summary.counted]
    model = records[0].get("model") or {}
    has_exchange = EXCHANGE in records[0]["phases"]
    # Communication hides behind backward; if it is mixed in, behind forward, too.
    hiding = ("backward",) if has_exchange else ("forward", "backward")
    return Scale(
        summary=summary,
        shape=Shape(**records[0]["shape"]),
        devices=summary.devices,
        throughput=geometric_mean(rates).scaled(1 / summary.cell.units_per_sample),
        work=_middle([(p.input + p.computation + p.host) / 1e3 for p in parts]),
        exposed=_middle([p.exchange / 1e3 for p in parts]),
        is_separate=all(p.is_separate for p in parts),
        has_exchange=has_exchange,
        window=_middle(
            [
                sum(launch.phase_ms.get(phase, 0.0) for phase in hiding) / 1e3
                for launch in summary.measures
            ]
        ),
        late=np.concatenate([_late(launch) for launch in summary.launches]),
        operations={}
        if None in times
        else {sweep.operation: sweep.times_weights or 0.0 for sweep in sweeps},
        weights=float(model.get("parameter_bytes") or 0),
        buckets=_buckets(records),
        stages=_stages(summary),
        calls=tuple(
            Call(sweep.operation, sweep.ranks, p.size, p.us.value / 1e6)
            for sweep in sweeps
            for p in sweep.points
        ),
        memory=summary.numbers["memory_mib"].value,
    )


def _middle(values: Sequence[float]) -> float:
    return float(np.median(values))


def _late(launch: Any) -> NDArray[np.float64]:
    """Seconds that each rank of each step exceeds a typical one: [ranks x steps]."""
    record, steps = launch.record, launch.read_steps().timed[:, -_STEPS:]
    own = steps.copy()
    if EXCHANGE in record["phases"]:
        own[:, :, list(record["phases"]).index(EXCHANGE)] = 0
    totals = own.sum(axis=2)
    by_rank = totals.mean(axis=1)
    typical = np.argsort(by_rank, kind="stable")[(len(by_rank) - 1) // 2]
    late: NDArray[np.float64] = (totals - by_rank[typical]).ravel()
    return late


def _buckets(records: Sequence[Record]) -> tuple[tuple[float, float], ...]:
    """Medians over ranks and launches, if all have the same buckets."""
    found = [
        (rank.get("details") or {}).get("buckets") or []
        for record in records
        for rank in record["ranks"]
    ]
    sizes = {tuple(bucket["bytes"] for bucket in rank) for rank in found}
    if len(sizes) != 1:
        return ()
    ready = np.array([[bucket["ready_s"] for bucket in rank] for rank in found])
    medians = np.median(ready, axis=0) if ready.size else ()
    return tuple(zip(map(float, sizes.pop()), map(float, medians), strict=True))


def _stages(summary: Summary) -> Stages | None:
    launches = [
        [rank.get("details") or {} for rank in launch.record["ranks"]]
        for launch in summary.launches
    ]
    # On a mesh, several ranks share a stage.
    on_mesh = "pipe" in summary.cell.options
    if on_mesh or not all("forward_s" in rank for ranks in launches for rank in ranks):
        return None
    costs = launches[0][0].get("part_costs") or ()
    return Stages(
        schedule=str(summary.cell.options.get("schedule")),
        microbatches=int(launches[0][0]["microbatches"]),
        forward=_middle([sum(r["forward_s"] for r in ranks) for ranks in launches]),
        backward=_middle([sum(r["backward_s"] for r in ranks) for ranks in launches]),
        update=_middle(
            [launch.phase_ms.get("update", 0.0) / 1e3 for launch in summary.measures]
        ),
        costs=tuple(map(float, costs)),
        counts=tuple(
            len(stage) for rank in launches[0] for stage in rank.get("stages", ())
        ),
    )
