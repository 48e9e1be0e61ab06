"""Predictions for topologies that were not measured, with intervals.

A prediction comes from what steps are made of (`mechanism.py`) if the records say it.
Its interval is learned from what the same method misses if a measured scale is hidden
from it. Otherwise it is a power law of the throughput alone: each doubling of the
devices costs the same share of efficiency, from the last measured point on. It never
gains any: a series that was superlinear does not stay so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy import optimize

from rankbench.cell import OF_PLACE, PLACEMENT, Cell, Shape
from rankbench.plan import PredictedCell
from rankbench.record import OVERSUBSCRIBED
from rankbench.results.numbers.launches import memory_for_rank
from rankbench.results.numbers.result_set import Summary
from rankbench.results.numbers.statistics import Estimate
from rankbench.results.prediction.mechanism import Scale, find_model, read_scale

_MILLION = 1e6

MECHANISM, TOTALS = "mechanism", "totals"

# Log error per doubling that a method has even if it missed nothing, and if there are
# too few scales to hide one.
_LEAST, _UNTRIED = 0.02, 0.1

# How far the truth may lie below and above, in units of that error. With these factors,
# 54 of 60 intervals held what eight hosts gave (`benchmarks/predicting.py`).
_FACTORS = (1.0085, 0.2937)

# Log of what a median differs by at least if the same row is measured again, on another
# day: the margin within which the answer calls rows equal. Intervals of launches of one
# day do not show it.
_AGAIN = 0.03


# How far the truth may lie below and above, as logarithms per doubling of devices: 95 %
# of the points of 94 published series lie within them, each source alike.
# `benchmarks/foresight.py` learns them.
MISSES = (0.265, 0.319)

# A doubling of devices raises the efficiency by this factor at most.
_MOST_GAIN = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a target would give, or why that cannot be said.

    Attributes:
        refused: the reason; then there are no numbers.
        numbers: by name, with 95 % intervals: `throughput` as all numbers here,
            `step_ms`, `efficiency` if the rows have a base, `memory_mib` of the rank
            that uses most, `hours`, device-hours of a million samples or tokens, and
            what these `cost`, where a device-hour has a price.
        fitted: the rows that it rests on.
        method: `MECHANISM` or `TOTALS`.
        why: the reason why it is not from the mechanism; None if it is.
        doublings: how often the devices of the largest row double up to the target.
    """

    target: PredictedCell
    refused: str | None = None
    numbers: Mapping[str, Estimate] = field(default_factory=dict)
    fitted: tuple[Summary, ...] = ()
    method: str = ""
    why: str | None = None
    doublings: float = 0.0
    currency: str | None = None

    @property
    def throughput(self) -> Estimate | None:
        """Samples/s or tokens/s."""
        return self.numbers.get("throughput")


def predict(
    summaries: Sequence[Summary],
    targets: Sequence[PredictedCell],
    price: tuple[float, str] | None = None,
) -> Iterator[Prediction]:
    """Predict each target from the rows that differ from it in topology alone.

    Args:
        summaries: of all rows.
        price: of a device-hour, and its currency.
    """
    ok = [row for row in summaries if row.status == "ok"]
    for target in targets:
        yield _predict(target, ok, price)


def _predict(
    target: PredictedCell, rows: Sequence[Summary], price: tuple[float, str] | None
) -> Prediction:
    if target.infeasible:
        return Prediction(target=target, refused=target.infeasible)
    if not any(_is_alike(row.cell, target.cell) for row in rows):
        return Prediction(target=target, refused="none of its rows is measured")
    chosen = _choose(target, rows)
    scales = list(map(read_scale, chosen))
    refused = _refuse(target, scales)
    if refused:
        return Prediction(target=target, refused=refused)
    model = find_model(scales)
    devices = target.cell.size.devices
    doublings = math.log2(devices / scales[-1].devices)
    noise = max(_AGAIN, *(scale.noise for scale in scales))
    if isinstance(model, str):
        known = [(scale.devices, scale.throughput.value) for scale in scales]
        found, method, why = predict_by_law(known, devices, noise), TOTALS, model
    else:
        try:
            value = target.shape.global_batch / model.seconds(target.shape)
        except ValueError as error:
            return Prediction(target=target, refused=str(error))
        method, why = MECHANISM, None
        misses = _learn_misses(scales, _miss_step)
        found = find_interval(value, doublings, misses, noise)
    throughput = found.scaled(target.cell.units_per_sample)
    batch = 1e3 * target.shape.global_batch
    base = chosen[-1].efficiency_base
    memory = _predict_memory(scales, target, doublings)
    record = scales[-1].summary.records[0]
    device, ranks = target.cell.device, target.shape.ranks_per_node
    limit = memory_for_rank(record, device, ranks)
    if limit is not None and memory.value > limit:
        refused = (
            f"a rank would need {memory.value / 1024:.3g} GiB; "
            f"there are {limit / 1024:.3g} for each"
        )
        return Prediction(target=target, refused=refused)
    hours = throughput.inverse().scaled(devices * _MILLION / 3600)
    numbers = {
        "throughput": throughput,
        "step_ms": found.inverse().scaled(batch),
        **({"efficiency": throughput.scaled(1 / devices / base.rate)} if base else {}),
        "memory_mib": memory,
        "hours": hours,
        **({"cost": hours.scaled(price[0])} if price else {}),
    }
    return Prediction(
        target=target,
        numbers=numbers,
        fitted=tuple(chosen),
        method=method,
        why=why,
        doublings=doublings,
        currency=price and price[1],
    )


def _choose(target: PredictedCell, rows: Sequence[Summary]) -> list[Summary]:
    """The rows to fit to, one for each number of devices, in ascending order.

    A network between hosts says nothing of one within a host, so rows on several
    devices are on several hosts exactly if the target is. Of rows with equally many
    devices the one counts whose hosts have as many as those of the target.
    """
    own = [row for row in rows if _is_alike(row.cell, target.cell)]
    alone = [row for row in own if row.devices == 1] or [
        row
        for row in rows
        if row.cell.is_base
        and row.cell.apart_from(PLACEMENT) == target.cell.apart_from(PLACEMENT)
    ]
    several = [
        row
        for row in own
        if row.devices > 1
        and OVERSUBSCRIBED not in row.marks
        and (row.cell.size.nodes > 1) == (target.cell.size.nodes > 1)
    ]
    wanted = target.cell.size.devices_per_node
    several.sort(key=lambda row: abs(row.cell.size.devices_per_node - wanted))
    by_devices = {row.devices: row for row in reversed([*alone, *several])}
    largest = target.cell.size.devices
    return [by_devices[count] for count in sorted(by_devices) if count < largest]


def _is_alike(cell: Cell, other: Cell) -> bool:
    return cell.apart_from(OF_PLACE) == other.apart_from(OF_PLACE)


def _refuse(target: PredictedCell, scales: Sequence[Scale]) -> str | None:
    """The reason why these rows are too little or do not fit together, or None."""
    several = [scale for scale in scales if scale.devices > 1]
    where = "on several hosts" if target.cell.size.nodes > 1 else "on one host"
    if len(scales) < 2 or not several:
        said = f"no smaller row on several devices is measured {where}"
        if several:
            said = f"{scales[0].summary.id} is its only smaller row {where}"
        return f"{said}; a prediction needs two scales"
    records = [record for scale in scales for record in scale.summary.records]
    kinds = {
        f"{host.get('cpus')} x {host['cpu']}"
        + "".join(sorted(f" + {gpu['name']}" for gpu in host["gpus"]))
        for record in records
        for host in record["hosts"]
    }
    if len(kinds) > 1:
        listed = "; ".join(sorted(kinds))
        return f"its rows were measured on hosts that differ: {listed}"
    return None


def _learn_misses(
    scales: Sequence[Scale], miss: Callable[[Sequence[Scale], Scale], float | None]
) -> tuple[float, float]:
    """How far a method is off per doubling, from measured scales hidden from it.

    Args:
        miss: the known scales, the hidden one -> log of its predicted over its measured
            value; None if they are too few for this method.
    """
    missed = []
    for hidden in scales[1:]:
        rest = [scale for scale in scales if scale is not hidden]
        error = miss(rest, hidden)
        if error is not None:
            far = min(abs(math.log2(hidden.devices / scale.devices)) for scale in rest)
            missed.append(abs(error) / far)
    error = _LEAST + (float(np.mean(missed)) if missed else _UNTRIED)
    return _FACTORS[0] * error, _FACTORS[1] * error


def _miss_step(known: Sequence[Scale], hidden: Scale) -> float | None:
    model = find_model(known) if len(known) > 1 else "one scale alone"
    if isinstance(model, str):
        return None
    return math.log(model.seconds(hidden.shape) / hidden.step)


def _predict_memory(
    scales: Sequence[Scale], target: PredictedCell, doublings: float
) -> Estimate:
    several = [scale for scale in scales if scale.devices > 1]
    known = several if len(several) > 1 else scales
    value = _fit_memory(known, target.shape)

    def miss(rest: Sequence[Scale], hidden: Scale) -> float:
        return math.log(_fit_memory(rest, hidden.shape) / _memory_of(hidden))

    return find_interval(value, doublings, _learn_misses(known, miss), _AGAIN)


def _memory_of(scale: Scale) -> float:
    """MiB of the rank that used most."""
    return scale.summary.numbers["memory_mib"].value


def _fit_memory(scales: Sequence[Scale], shape: Shape) -> float:
    """MiB of a rank: what is always there, what samples need, what ranks share."""

    def terms(shape: Shape) -> list[float]:
        return [1.0, float(shape.rank_batch), 1.0 / shape.ranks]

    values = np.array([_memory_of(scale) for scale in scales])
    table = np.array([terms(scale.shape) for scale in scales]) / values[:, None]
    weights, _ = optimize.nnls(table, np.ones(len(scales)))
    return float(np.dot(weights, terms(shape)))


# --- the power law -------------------------------------------------------------------


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
