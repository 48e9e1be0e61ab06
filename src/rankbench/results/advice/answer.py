"""What the records of a result directory say about the question of its user.

The answer is made of JSON values: `answer.json` holds them, and `words.py` says the
same in words, from these values alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from rankbench.cell import Cell
from rankbench.record import (
    NO_EXCHANGE,
    OTHER_SAMPLES,
    SAME_DATA,
    UNCLEAN_END,
    disturbances,
)
from rankbench.results.advice.choice import (
    APART,
    EQUAL,
    LESS,
    Facts,
    choose,
    find_end,
    is_too_noisy,
    plan_next,
)
from rankbench.results.numbers.fit import MARGIN
from rankbench.results.numbers.losses import Loss, find_losses
from rankbench.results.numbers.measures import LOSS_STEPS, Measures
from rankbench.results.numbers.result_set import ResultSet
from rankbench.results.numbers.series import (
    Panel,
    Series,
    find_controls,
    is_shared,
)
from rankbench.results.numbers.statistics import (
    MIN_LAUNCHES,
    mean,
    round_off,
)
from rankbench.results.numbers.summary import (
    DRIFTING,
    GROUPED,
    NO_STEADY_STATE,
    UNPAIRED,
    Summary,
)

ANSWER_VERSION = 1

# Efficiency of a sensible topology, if the user wants no other.
EFFICIENCY = 0.7

# Of a device-hour, and its currency.
Price = tuple[float, str]

# Rows that do not say how fast a strategy is.
_NO_SPEED = "functional"

# Packages beside torch that a row may need, by what its strategy or launcher is called.
_PACKAGES = ("horovod", "deepspeed")

# A script has no epochs: its topologies take so many samples.
_MANY = 1_000_000

# Marks that weaken a row, in words. There are no grades.
_DOUBTS = {
    "approximate": "a lossy option changes what is trained",
    DRIFTING: "its launches became faster or slower one after the other",
    "emulated": "its computation is emulated",
    "mixed-hosts": "its launches ran on different hosts",
    "mixed-torch": "it or its base ran different versions of torch",
    NO_STEADY_STATE: "step times still changed their level at the end of a launch",
    NO_EXCHANGE: "its ranks exchange no gradients",
    OTHER_SAMPLES: "its batches are not as large as samples_per_step says",
    "other-code": "the code of the ranks has changed since",
    "oversubscribed": "ranks share a core or a GPU, or lack cores",
    "throttled": "a GPU lowered its clocks",
    UNCLEAN_END: "a launch hung or crashed after its ranks had reported",
    UNPAIRED: "it was not launched in the same rounds as its base, so nobody compared "
    "them",
    GROUPED: "its launches fall into groups: some are far slower than others",
    SAME_DATA: "its ranks train on the same samples",
    "unchecked": "no gate has checked what it trains",
}


def find_answer(
    found: ResultSet, *, margin: float = MARGIN, efficiency: float = EFFICIENCY
) -> Facts:
    """The answer for each workload, as JSON values.

    Args:
        found: what was read of a result directory.
        margin: rows that differ by less are equally good, as a share.
        efficiency: a topology is sensible if its efficiency is higher.
    """
    losses = {loss.cell: loss for loss in find_losses(found.summaries)}
    cells = {summary.row.id: summary.row.cell for summary in found.summaries}
    price = found.results.price
    return {
        "schema": ANSWER_VERSION,
        "experiment": found.results.experiment,
        "margin": margin,
        "efficiency": efficiency,
        "workloads": [
            _judge_workload(panel, losses, margin, efficiency, price)
            for panel in found.panels
        ],
        "without_numbers": [
            {
                "status": status,
                "reason": reason,
                "first": _describe(cells[names[0]]),
                "cells": names,
            }
            for (status, reason), names in found.reasons.items()
        ],
    }


def _judge_workload(
    panel: Panel,
    losses: Mapping[str, Loss],
    margin: float,
    efficiency: float,
    price: Price | None,
) -> Facts:
    timed = {row.row.id: row for row in panel.points if _NO_SPEED not in row.marks}
    base = next((name for name, row in timed.items() if row.row.cell.is_base), None)
    controls = find_controls(list(timed.values()))
    rows = {name: row for name, row in timed.items() if name not in controls}
    words = {
        point.row.id: " ".join(series.words)
        for series in panel.series
        for point in series.points
    }
    facts: Facts = {
        "workload": panel.title,
        "rows": len(rows),
        "measured": _describe_launches(list(timed.values())),
        "names": {n: _describe(row.row.cell, words[n]) for n, row in timed.items()},
    }
    if len(rows) < 2:
        return facts
    fastest = _choose(rows, margin, per_device=False)
    cheapest = _choose(rows, margin, per_device=True)
    judged = [_scale(series, timed, efficiency) for series in panel.series]
    scaling = [series for series in judged if series is not None]
    rest_on = dict.fromkeys(
        [
            *(fastest["cell"], fastest["recommended"]),
            *(rival["cell"] for rival in fastest["rivals"]),
            *([base] if base else []),
        ]
    )
    return {
        **facts,
        "base": base,
        "fastest": fastest,
        "cheapest": {**cheapest, **_cost(rows[cheapest["cell"]], price)},
        "cost_of_use": _cost(rows[fastest["recommended"]], price),
        "scaling": scaling,
        "lost": _explain(rows, losses),
        "training": _compare_training(
            rows, fastest["recommended"], fastest["cell"], base
        ),
        "trust": _find_doubts([rows[name] for name in rest_on]),
        "next": plan_next(
            timed,
            {"fastest": fastest, "cheapest": cheapest},
            scaling,
            efficiency,
        ),
    }


def _describe_launches(rows: Sequence[Summary]) -> Facts:
    """When and where the launches of a workload ran."""
    records = [launch.record for row in rows for launch in row.row.launches]
    days = sorted({record["started"][:10] for record in records if "started" in record})
    hosts = {host["host"]: host for record in records for host in record["hosts"]}
    kinds = {
        f"{len(host['gpus'])} x {host['gpus'][0]['name']}"
        if host["gpus"]
        else f"{host['cores']} cores of {host['cpu']}"
        for host in hosts.values()
    }
    return {
        "days": days,
        "launches": sorted({len(row.row.launches) for row in rows}),
        "total": len(records),
        "disturbed": sum(len(row.disturbed) for row in rows),
        "repeated": sum(row.row.repeated for row in rows),
        "hosts": len(hosts),
        "machines": sorted(kinds),
    }


def _describe(cell: Cell, own: str = "") -> str:
    """A cell in words, with what else sets it apart: `ddp over gloo on 2 devices`."""
    over = "" if cell.backend == "none" else f" over {cell.backend}"
    size = cell.size
    where = "1 device" if size.devices == 1 else f"{size.devices} devices"
    if size.nodes > 1:
        where = f"{size.nodes} x {size.devices_per_node} devices"
    return f"{cell.strategy}{over}{f' ({own})' if own else ''} on {where}"


def _choose(rows: Mapping[str, Summary], margin: float, *, per_device: bool) -> Facts:
    """The best row by throughput (of a device), and those that may be as good."""
    factors = {
        name: 1 / (row.row.devices if per_device else 1) for name, row in rows.items()
    }
    first = next(iter(rows.values()))
    assert first.fit is not None
    best, rivals = choose(first.fit, factors, margin, look=first.look)

    def burden(name: str) -> tuple[int, int, int, bool]:
        """What a row asks for: devices, processes, packages."""
        row = rows[name].row
        named = f"{row.cell.strategy} {row.cell.launcher}"
        packages = sum(package in named for package in _PACKAGES)
        ranks = int(row.launches[0].record["shape"]["ranks"])
        return row.devices, ranks, packages, name != best

    equal = [name for name, rival in rivals.items() if rival["verdict"] == EQUAL]
    unit = rows[best].row.cell.unit
    close = {n: rival for n, rival in rivals.items() if rival["verdict"] != LESS}
    return {
        "cell": best,
        "throughput": rows[best].numbers["throughput"].scaled(factors[best]).to_json(),
        **({} if unit == "samples" else {"unit": f"{unit}/s"}),
        "recommended": min([best, *equal], key=burden),
        "rivals": [{"cell": name, **rival} for name, rival in close.items()],
        "too_noisy": is_too_noisy(close.values()),
        "is_compared": any(one["verdict"] != APART for one in rivals.values()),
        "less": len(rivals) - len(close),
    }


def _cost(summary: Summary, price: Price | None) -> Facts:
    """Device-hours of an epoch, and their price; of many samples for a script."""
    hours = summary.numbers["epoch_s"].scaled(summary.row.devices / 3600)
    record = summary.row.launches[0].record
    samples = record["steps_per_epoch"] * record["shape"]["global_batch"]
    has_epochs = summary.row.cell.script is None
    if not has_epochs:
        hours, samples = hours.scaled(_MANY / samples), _MANY
    facts: Facts = {
        "device_hours_per_epoch": hours.to_json(),
        "samples_per_epoch": samples,
    }
    if not has_epochs:
        facts["has_epochs"] = False
    if price is not None:
        amount, currency = price
        facts["price_per_epoch"] = hours.scaled(amount).to_json()
        facts["currency"] = currency
    return facts


def _scale(series: Series, rows: Mapping[str, Summary], wanted: float) -> Facts | None:
    """How far a series keeps its efficiency; None if it is on one device alone."""
    points = [
        point
        for point in series.points
        if not is_shared(point) and "efficiency" in point.numbers
    ]
    several = [point for point in points if point.row.devices > 1]
    if not several:
        return None
    base = several[0].efficiency_base
    if base and base.id in rows and len(several) == len(points):
        points.insert(0, rows[base.id])
    above, end, is_below = find_end(several, wanted)
    told = end and _describe_point(end)
    return {
        "series": series.name,
        "points": [
            {**_describe_point(point), "devices": point.row.devices} for point in points
        ],
        "largest": _describe_point(above[-1]) if above else None,
        "first_below": told if is_below else None,
        "untold": [told] if told and not is_below else [],
    }


def _describe_point(summary: Summary) -> Facts:
    rate = summary.numbers["throughput"]
    return {
        "per_device": rate.scaled(1 / summary.row.devices).to_json(),
        "cell": summary.row.id,
        "topology": summary.row.cell.topology,
        "efficiency": summary.numbers["efficiency"].to_json(),
    }


def _explain(rows: Mapping[str, Summary], losses: Mapping[str, Loss]) -> Facts | None:
    """The loss of the fastest row on several devices."""
    several = [name for name in rows if name in losses]
    if not several:
        return None
    name = max(several, key=lambda name: rows[name].numbers["throughput"].value)
    loss = losses[name]
    return {
        "cell": loss.cell,
        "base": loss.base,
        "step_ms": round_off(loss.step),
        "promised_ms": round_off(loss.promised),
        "lost_ms": loss.lost.to_json(),
        "parts_ms": {part: value.to_json() for part, value in loss.parts.items()},
        "is_separate": loss.is_separate,
        "late_rank": None if loss.late is None else loss.late[0],
        "late_phase": None if loss.late is None else loss.late[1],
    }


def _compare_training(rows: Mapping[str, Summary], *names: str | None) -> Facts | None:
    """Accuracy, and loss at equal samples and times; None unless there are two rows.

    Args:
        rows: of the workload, by id.
        names: of the rows; a name may occur twice, or be missing.
    """
    chosen = [rows[name] for name in dict.fromkeys(names) if name is not None]
    if len(chosen) < 2:
        return None
    batches = [row.row.launches[0].record["shape"]["global_batch"] for row in chosen]
    samples = min(
        len(launch.losses) * batch
        for row, batch in zip(chosen, batches, strict=True)
        for launch in row.counted
    )
    seconds = min(_time_of_steps(launch) for row in chosen for launch in row.counted)
    cells = []
    for row, batch in zip(chosen, batches, strict=True):
        accuracy = row.numbers.get("accuracy")
        ends = [
            round(seconds / _time_of_steps(launch) * len(launch.losses))
            for launch in row.counted
        ]
        cells.append(
            {
                "cell": row.row.id,
                "global_batch": batch,
                "accuracy": None if accuracy is None else accuracy.to_json(),
                "loss_at_equal_samples": _loss(
                    row, [round(samples / batch)] * len(ends)
                ),
                "loss_at_equal_time": _loss(row, ends),
            }
        )
    return {
        "samples": int(samples),
        "seconds": round_off(seconds),
        "scaling": chosen[0].row.cell.scaling,
        "cells": cells,
    }


def _time_of_steps(launch: Measures) -> float:
    """Seconds of all steps, those of the warm-up at the mean of the timed ones."""
    return launch.seconds_of(len(launch.losses))


def _loss(summary: Summary, ends: Sequence[int]) -> Facts | None:
    """Mean loss of the steps before a step of each launch; None if it is no number."""
    found = [
        float(np.mean(launch.losses[max(0, end - LOSS_STEPS) : max(1, end)]))
        for launch, end in zip(summary.counted, ends, strict=True)
    ]
    return mean(found).to_json() if np.isfinite(found).all() else None


def _find_doubts(rows: Sequence[Summary]) -> list[Facts]:
    """What weakens rows: one entry for each row that something weakens.

    Args:
        rows: those that the answer rests on, the fastest first.
    """
    # Processors and GPUs of the hosts of all launches.
    hardware = [
        {
            (host["cpu"], *sorted(gpu["name"] for gpu in host["gpus"]))
            for launch in row.row.launches
            for host in launch.record["hosts"]
        }
        for row in rows
    ]
    found = []
    for row, own in zip(rows, hardware, strict=True):
        doubts = list(_doubt(row))
        if own != hardware[0]:
            doubts.append(f"it ran on other hardware than {rows[0].row.id}")
        if doubts:
            found.append({"cell": row.row.id, "doubts": doubts})
    return found


def _doubt(summary: Summary) -> Iterator[str]:
    count = len(summary.measures)
    if count < MIN_LAUNCHES:
        launches = "launch" if count == 1 else "launches"
        yield f"{count} {launches} only, so it has no interval"
    if summary.disturbed:
        yield (
            f"{len(summary.disturbed)} of its {count} launches were disturbed, and are "
            "left out"
        )
    yield from (_DOUBTS[mark] for mark in summary.marks if mark in _DOUBTS)
    found = [disturbances(launch.record) for launch in summary.row.launches]
    if disturbed := [words for words in found if words]:
        yield (
            f"{len(disturbed)} of its {count} launches were disturbed, as their "
            f"repetitions were: {disturbed[-1][0]}"
        )
