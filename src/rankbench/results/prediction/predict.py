"""Predictions for topologies that were not measured, with intervals.

A prediction comes from what steps are made of (`mechanism.py`) where the records tell
that, and else from throughput alone (`totals.py`). How far it may be off is learned
from what the same method misses if a measured scale is hidden from it, and from how
much further published series strayed (`published.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize

from rankbench.cell import Cell, Shape, Topology
from rankbench.results.numbers.exchange import Sweep, find_sweeps
from rankbench.results.numbers.statistics import Estimate
from rankbench.results.numbers.summary import Base, Summary
from rankbench.results.prediction.mechanism import find_model
from rankbench.results.prediction.published import load_factors
from rankbench.results.prediction.scale import Scale, read_scale
from rankbench.results.prediction.totals import Guess, Point, guess
from rankbench.results.read.rows import Target

MECHANISM, TOTALS = "mechanism", "totals"

# Log error per doubling that a method has even if it missed nothing, and if there are
# too few scales to hide one.
_LEAST, _UNTRIED = 0.02, 0.1

# Log of what a median differs by at least if the same row is measured again, on another
# day: the margin within which the answer calls rows equal. Intervals of launches of one
# day do not show it.
_AGAIN = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a target would give, or why that cannot be said.

    Attributes:
        refused: the reason; then there are no numbers.
        fitted: the rows that it rests on.
        method: `MECHANISM` or `TOTALS`.
        why: the reason why it is not from the mechanism; None if it is.
        throughput: samples/s or tokens/s, with a 95 % interval, as all numbers here.
        efficiency: None if the rows have no base.
        memory_mib: of the rank that uses most.
        doublings: how often the devices of the largest row double up to the target.
    """

    target: Target
    refused: str | None = None
    fitted: tuple[Summary, ...] = ()
    method: str = ""
    why: str | None = None
    throughput: Estimate | None = None
    step_ms: Estimate | None = None
    efficiency: Estimate | None = None
    memory_mib: Estimate | None = None
    doublings: float = 0.0


def predict(
    summaries: Sequence[Summary], targets: Sequence[Target]
) -> Iterator[Prediction]:
    """Predict each target from the rows that differ from it in topology alone.

    Args:
        summaries: of all rows.
    """
    ok = [one for one in summaries if one.measures]
    sweeps: dict[str, list[Sweep]] = {}
    for sweep in find_sweeps(ok):
        sweeps.setdefault(sweep.cell, []).append(sweep)
    for target in targets:
        yield _predict(target, ok, sweeps)


def _predict(
    target: Target, rows: Sequence[Summary], sweeps: dict[str, list[Sweep]]
) -> Prediction:
    if target.obstacle:
        return Prediction(target=target, refused=target.obstacle)
    if not any(_is_alike(one.row.cell, target.cell) for one in rows):
        return Prediction(target=target, refused="none of its rows is measured")
    chosen = _choose(target, rows)
    scales = [read_scale(one, sweeps.get(one.row.id, ())) for one in chosen]
    refused = _refuse(target, scales)
    if refused:
        return Prediction(target=target, refused=refused)
    model = find_model(scales)
    points = [Point(one.devices, one.throughput.value) for one in scales]
    devices = target.topology.devices
    if isinstance(model, str):
        found, method, why = guess(points, devices), TOTALS, model
    else:
        try:
            seconds = model.seconds(target.shape)
        except ValueError as error:
            return Prediction(target=target, refused=str(error))
        found = Guess(
            target.shape.global_batch / seconds,
            math.log2(devices / scales[-1].devices),
            _risk(scales, _miss_step),
        )
        method, why = MECHANISM, None
    noise = max(_AGAIN, *(one.noise for one in scales))
    low, high = load_factors().interval(found, noise)
    units = target.cell.units_per_sample
    throughput = Estimate(found.value, low, high).scaled(units)
    batch = 1e3 * target.shape.global_batch
    base = chosen[-1].efficiency_base
    memory = _predict_memory(scales, target)
    limit = _memory_of_device(scales[-1], target)
    if limit is not None and memory.value > limit:
        refused = (
            f"a rank would need {memory.value / 1024:.3g} GiB; "
            f"there are {limit / 1024:.3g} for each"
        )
        return Prediction(target=target, refused=refused)
    return Prediction(
        target=target,
        fitted=tuple(chosen),
        method=method,
        why=why,
        throughput=throughput,
        step_ms=Estimate(batch / found.value, batch / high, batch / low),
        efficiency=_efficiency(throughput, base, devices),
        memory_mib=memory,
        doublings=found.doublings,
    )


def _choose(target: Target, rows: Sequence[Summary]) -> list[Summary]:
    """The rows to fit to, one for each number of devices, in ascending order.

    A network between hosts says nothing of one within a host, so rows on several
    devices are on several hosts exactly if the target is. Of rows with equally many
    devices the one counts whose hosts have as many as those of the target.
    """
    own = [one for one in rows if _is_alike(one.row.cell, target.cell)]
    alone = [one for one in own if one.row.devices == 1] or [
        one
        for one in rows
        if one.row.cell.is_base and one.row.cell.workload() == target.cell.workload()
    ]
    several = [
        one
        for one in own
        if one.row.devices > 1
        and "oversubscribed" not in one.marks
        and (_topology(one).nodes > 1) == (target.topology.nodes > 1)
    ]
    wanted = target.topology.devices_per_node
    by_devices: dict[int, Summary] = {}
    nearest = sorted(
        several, key=lambda one: abs(_topology(one).devices_per_node - wanted)
    )
    for one in [*alone, *nearest]:
        by_devices.setdefault(one.row.devices, one)
    return [
        by_devices[count]
        for count in sorted(by_devices)
        if count < target.topology.devices
    ]


def _is_alike(one: Cell, other: Cell) -> bool:
    free = ("topology", "oversubscribe")
    return one.workload(free) == other.workload(free)


def _topology(summary: Summary) -> Topology:
    return Topology.parse(summary.row.cell.topology)


def _refuse(target: Target, scales: Sequence[Scale]) -> str | None:
    """The reason why these rows are too little or do not fit together, or None."""
    several = [one for one in scales if one.devices > 1]
    where = "on several hosts" if target.topology.nodes > 1 else "on one host"
    if not several:
        return (
            f"no smaller row on several devices is measured {where}; "
            "a prediction needs two scales"
        )
    if len(scales) < 2:
        return (
            f"{scales[0].summary.row.id} is its only smaller row {where}; "
            "a prediction needs two scales"
        )
    kinds = {
        _hardware(host)
        for one in scales
        for launch in one.summary.row.launches
        for host in launch.record["hosts"]
    }
    if len(kinds) > 1:
        listed = "; ".join(sorted(kinds))
        return f"its rows were measured on hosts that differ: {listed}"
    return None


def _hardware(host: dict[str, object]) -> str:
    gpus = host.get("gpus") or []
    assert isinstance(gpus, list)
    names = sorted(str(gpu["name"]) for gpu in gpus)
    return f"{host.get('cpus')} x {host.get('cpu')}" + "".join(f" + {n}" for n in names)


def _risk(
    scales: Sequence[Scale], miss: Callable[[Sequence[Scale], Scale], float | None]
) -> float:
    """Log error per doubling of a method where a measured scale is hidden from it.

    Args:
        miss: the known scales, the hidden one -> log of its predicted over its measured
            value; None if they are too few for this method.
    """
    missed = []
    for hidden in scales[1:]:
        rest = [one for one in scales if one is not hidden]
        error = miss(rest, hidden)
        if error is not None:
            far = min(abs(math.log2(hidden.devices / one.devices)) for one in rest)
            missed.append(abs(error) / far)
    return _LEAST + (float(np.mean(missed)) if missed else _UNTRIED)


def _miss_step(known: Sequence[Scale], hidden: Scale) -> float | None:
    model = find_model(known) if len(known) > 1 else "one scale alone"
    if isinstance(model, str):
        return None
    return math.log(model.seconds(hidden.shape) / hidden.step)


def _efficiency(
    throughput: Estimate, base: Base | None, devices: int
) -> Estimate | None:
    if base is None:
        return None
    return throughput.scaled(1 / (devices * base.throughput.value))


def _predict_memory(scales: Sequence[Scale], target: Target) -> Estimate:
    several = [one for one in scales if one.devices > 1]
    known = several if len(several) > 1 else scales
    doublings = math.log2(target.topology.devices / scales[-1].devices)
    value = _fit_memory(known, target.shape)
    found = Guess(value, doublings, _risk(known, _miss_memory))
    return Estimate(value, *load_factors().interval(found, _AGAIN))


def _miss_memory(known: Sequence[Scale], hidden: Scale) -> float | None:
    return math.log(_fit_memory(known, hidden.shape) / hidden.memory)


def _fit_memory(scales: Sequence[Scale], shape: Shape) -> float:
    """MiB of a rank: what is always there, what samples need, what ranks share."""

    def terms(one: Shape) -> list[float]:
        return [1.0, float(one.rank_batch), 1.0 / one.ranks]

    values = np.array([one.memory for one in scales])
    table = np.array([terms(one.shape) for one in scales]) / values[:, None]
    weights, _ = optimize.nnls(table, np.ones(len(scales)))
    return float(np.dot(weights, terms(shape)))


def _memory_of_device(scale: Scale, target: Target) -> float | None:
    """MiB that a rank may use; None if that is not recorded."""
    host = scale.summary.row.launches[0].record["hosts"][0]
    if target.cell.device == "cuda":
        sizes = [gpu.get("memory_gib") for gpu in host.get("gpus") or ()]
        known = [size for size in sizes if size]
        return 1024 * min(known) if known else None
    if not host.get("memory_gib"):
        return None
    return float(1024 * host["memory_gib"] / target.shape.ranks_per_node)
