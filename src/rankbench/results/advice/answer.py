"""What the records of a result directory say about the question of its user.

The answer is made of JSON values: `answer.json` holds them, and `sentences.py` says the
same in words, from these values alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rankbench.results.advice.choice import EQUAL, LESS, Rival, choose
from rankbench.results.advice.facts import Facts, round_off, to_json
from rankbench.results.advice.next_launches import plan_next
from rankbench.results.advice.training import compare_training
from rankbench.results.advice.trust import find_doubts
from rankbench.results.numbers.losses import Loss, find_losses
from rankbench.results.numbers.result_set import ResultSet
from rankbench.results.numbers.series import Panel, Series, is_shared
from rankbench.results.numbers.statistics import Estimate
from rankbench.results.numbers.summary import Summary

ANSWER_VERSION = 1

# Rows that do not say how fast a strategy is.
_NO_SPEED = "functional"

# Packages beside torch that a row may need, by what its strategy or launcher is called.
_PACKAGES = ("horovod", "deepspeed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the user asks for.

    Attributes:
        margin: rows that differ by less are equally good, as a share.
        efficiency: a topology is sensible if its efficiency is higher.
        price: of a device-hour, and its currency; None if the site gives none.
    """

    margin: float = 0.03
    efficiency: float = 0.7
    price: tuple[float, str] | None = None


def find_answer(found: ResultSet, settings: Settings | None = None) -> Facts:
    """The answer for each workload, as JSON values.

    Args:
        found: what was read of a result directory.
        settings: by default, with the price that the site file gave.
    """
    chosen = settings or Settings(price=found.results.price)
    losses = {one.cell: one for one in find_losses(found.summaries)}
    return {
        "schema": ANSWER_VERSION,
        "experiment": found.results.experiment,
        "margin": chosen.margin,
        "efficiency": chosen.efficiency,
        "workloads": [_of_workload(panel, losses, chosen) for panel in found.panels],
    }


def _of_workload(panel: Panel, losses: Mapping[str, Loss], settings: Settings) -> Facts:
    timed = {one.row.id: one for one in panel.points if _NO_SPEED not in one.marks}
    base = next((name for name, one in timed.items() if one.row.cell.is_base), None)
    # A control only says what a strategy costs by itself: nobody would choose it.
    spread = any(one.row.devices > 1 for one in timed.values())
    rows = {
        name: one
        for name, one in timed.items()
        if not (spread and _is_control(one, base))
    }
    facts: Facts = {
        "workload": panel.title,
        "rows": len(rows),
        "measured": _describe_launches(list(timed.values())),
        "names": {name: _name(one, panel) for name, one in timed.items()},
    }
    if len(rows) < 2:
        return facts
    fastest = _choose(rows, settings.margin, per_device=False)
    cheapest = _choose(rows, settings.margin, per_device=True)
    judged = [_scale(one, settings.efficiency) for one in panel.series]
    scaling = [one for one in judged if one is not None]
    named = [fastest["cell"], fastest["recommended"], *_names(fastest["rivals"])]
    lost = _explain(rows, losses)
    rest_on = dict.fromkeys([*named, *([base] if base else [])])
    return {
        **facts,
        "base": base,
        "fastest": fastest,
        "cheapest": {**cheapest, **_cost(rows[cheapest["cell"]], settings)},
        "scaling": scaling,
        "lost": lost,
        "training": compare_training(
            rows, fastest["recommended"], fastest["cell"], base
        ),
        "trust": find_doubts([rows[name] for name in rest_on]),
        "next": plan_next(
            timed,
            {"fastest": fastest, "cheapest": cheapest},
            scaling,
            settings.efficiency,
        ),
    }


def _is_control(summary: Summary, base: str | None) -> bool:
    """Whether it is a strategy for several devices, on one, beside the base."""
    return summary.row.devices == 1 and base is not None and summary.row.id != base


def _describe_launches(rows: Sequence[Summary]) -> Facts:
    """When and where the launches of a workload ran."""
    records = [launch.record for one in rows for launch in one.row.launches]
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
        "launches": sorted({len(one.row.launches) for one in rows}),
        "total": len(records),
        "disturbed": sum(len(one.disturbed) for one in rows),
        "repeated": sum(one.row.repeated for one in rows),
        "hosts": len(hosts),
        "machines": sorted(kinds),
    }


def _name(summary: Summary, panel: Panel) -> str:
    """A row in words: `ddp over gloo on 2 devices`."""
    cell, devices = summary.row.cell, summary.row.devices
    series = next(
        one.name
        for one in panel.series
        if summary.row.id in [point.row.id for point in one.points]
    )
    words = series.removeprefix(f"{cell.strategy} {cell.backend}").strip()
    own = words.removeprefix(cell.strategy).strip()
    over = "" if cell.backend == "none" else f" over {cell.backend}"
    size = cell.size
    where = "1 device" if devices == 1 else f"{devices} devices"
    if size.nodes > 1:
        where = f"{size.nodes} x {size.devices_per_node} devices"
    return f"{cell.strategy}{over}{f' ({own})' if own else ''} on {where}"


def _choose(rows: Mapping[str, Summary], margin: float, *, per_device: bool) -> Facts:
    """The best row by throughput (of a device), and those that may be as good."""
    factors = {
        name: 1 / (row.row.devices if per_device else 1) for name, row in rows.items()
    }
    fit = next(iter(rows.values())).fit
    assert fit is not None
    best, rivals = choose(fit, factors, margin)
    equal = [name for name, rival in rivals.items() if rival.verdict == EQUAL]
    simplest = min([best, *equal], key=lambda name: (_burden(rows[name]), name != best))
    unit = rows[best].row.cell.unit
    close = {n: rival for n, rival in rivals.items() if rival.verdict != LESS}
    return {
        "cell": best,
        "throughput": to_json(rows[best].numbers["throughput"].scaled(factors[best])),
        **({} if unit == "samples" else {"unit": f"{unit}/s"}),
        "recommended": simplest,
        "rivals": [_describe_rival(name, one) for name, one in close.items()],
        "less": len(rivals) - len(close),
    }


def _burden(summary: Summary) -> tuple[int, int, int]:
    """What a row asks for: devices, processes, packages."""
    cell, shape = summary.row.cell, summary.row.launches[0].record["shape"]
    named = f"{cell.strategy} {cell.launcher}"
    packages = sum(package in named for package in _PACKAGES)
    return summary.row.devices, int(shape["ranks"]), packages


def _describe_rival(name: str, rival: Rival) -> Facts:
    return {
        "cell": name,
        "ratio": to_json(rival.ratio),
        "verdict": rival.verdict,
        "launches": rival.launches,
    }


_MANY = 1_000_000  # samples


def _names(rivals: Sequence[Facts]) -> list[str]:
    return [rival["cell"] for rival in rivals]


def _cost(summary: Summary, settings: Settings) -> Facts:
    """Device-hours of an epoch, and their price; of many samples for a script."""
    hours = summary.numbers["epoch_s"].scaled(summary.row.devices / 3600)
    record = summary.row.launches[0].record
    samples = record["steps_per_epoch"] * record["shape"]["global_batch"]
    has_epochs = summary.row.cell.script is None
    if not has_epochs:
        # Nobody knows the epochs of a script: its topologies take equal samples.
        hours, samples = hours.scaled(_MANY / samples), _MANY
    facts: Facts = {
        "device_hours_per_epoch": to_json(hours),
        "samples_per_epoch": samples,
    }
    if not has_epochs:
        facts["has_epochs"] = False
    if settings.price is not None:
        amount, currency = settings.price
        facts["price_per_epoch"] = to_json(hours.scaled(amount))
        facts["currency"] = currency
    return facts


def _scale(series: Series, wanted: float) -> Facts | None:
    """How far a series keeps its efficiency; None if it is on one topology."""
    points = [
        one
        for one in series.points
        if not is_shared(one) and one.row.devices > 1 and "efficiency" in one.numbers
    ]
    if not points:
        return None
    verdicts = [(one, _judge(one.numbers["efficiency"], wanted)) for one in points]
    above = [one for one, verdict in verdicts if verdict is True]
    below = [one for one, verdict in verdicts if verdict is False]
    untold = [one for one, verdict in verdicts if verdict is None]
    return {
        "series": series.name,
        "points": [
            {**_describe_point(one), "devices": one.row.devices}
            for one in series.points
            if not is_shared(one) and "efficiency" in one.numbers
        ],
        "largest": _point(max(above, key=_devices, default=None)),
        "first_below": _point(min(below, key=_devices, default=None)),
        "untold": [_point(one) for one in untold],
    }


def _judge(efficiency: Estimate, wanted: float) -> bool | None:
    """Whether the efficiency is above what is wanted; None if it cannot be told."""
    if efficiency.low is None or efficiency.high is None:
        return None
    if efficiency.low > wanted:
        return True
    return False if efficiency.high < wanted else None


def _devices(summary: Summary) -> int:
    return summary.row.devices


def _point(summary: Summary | None) -> Facts | None:
    return None if summary is None else _describe_point(summary)


def _describe_point(summary: Summary) -> Facts:
    rate = summary.numbers["throughput"]
    return {
        "per_device": to_json(rate.scaled(1 / summary.row.devices)),
        "cell": summary.row.id,
        "topology": summary.row.cell.topology,
        "efficiency": to_json(summary.numbers["efficiency"]),
    }


def _explain(rows: Mapping[str, Summary], losses: Mapping[str, Loss]) -> Facts | None:
    """The loss of the fastest row on several devices."""
    several = [name for name in rows if name in losses]
    if not several:
        return None
    name = max(several, key=lambda one: rows[one].numbers["throughput"].value)
    loss = losses[name]
    return {
        "cell": loss.cell,
        "base": loss.base,
        "step_ms": round_off(loss.step),
        "promised_ms": round_off(loss.promised),
        "lost_ms": to_json(loss.lost),
        "parts_ms": {part: to_json(value) for part, value in loss.parts.items()},
        "is_separate": loss.is_separate,
        "late_rank": None if loss.late is None else loss.late[0],
        "late_phase": None if loss.late is None else loss.late[1],
    }
