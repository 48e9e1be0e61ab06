"""The table: one row for every planned cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rankbench.results.elements.notes import collect_notes
from rankbench.results.elements.section import Content, Section
from rankbench.results.elements.text import (
    Grid,
    Note,
    Text,
    describe_base,
    show_estimate,
)
from rankbench.results.numbers.network import find_network
from rankbench.results.numbers.result_set import ResultSet
from rankbench.results.numbers.statistics import Estimate, mean
from rankbench.results.numbers.summary import DETERMINISTIC, Summary

_TITLE = "Cells"

_RATIOS = ("speedup", "efficiency")
_PAIRED = {True: "paired", False: "unpaired"}

# Heading -> the estimate that it shows. Throughput has a column for each unit.
_ESTIMATES = {
    "step (ms)": "step_ms",
    "speedup": "speedup",
    "efficiency": "efficiency",
    "memory (MiB)": "memory_mib",
    "accuracy": "accuracy",
}

# If more cells share a reason, a document names only the first ones.
_MOST_NAMES = 4


def make(found: ResultSet) -> Content:
    """A row for every cell; documents collapse those without numbers."""
    experiment, summaries = found.results.experiment, found.summaries
    # Without tokens all are samples/s, as in tables that have been published.
    has_tokens = any(summary.row.cell.unit == "tokens" for summary in summaries)
    goal = found.results.target_loss
    grids = [_show_measured(found.measured, goal)] if found.measured else []
    grids += _show_others(summaries)
    builds = {build for summary in summaries if (build := _torch(summary))}
    return Content(
        rows=[
            {"experiment": experiment, **_row(summary), **_reach(summary, goal)}
            | ({"unit": f"{summary.row.cell.unit}/s"} if has_tokens else {})
            | ({"torch": _torch(summary)} if len(builds) > 1 else {})
            for summary in summaries
        ],
        grids=grids,
        before=_count(summaries),
        notes=collect_notes(summaries),
    )


def _row(summary: Summary) -> dict[str, Any]:
    row, cell = summary.row, summary.row.cell
    return {
        "cell": row.id,
        "strategy": cell.strategy,
        "backend": cell.backend,
        "topology": cell.topology,
        "devices": row.devices,
        "launcher": cell.launcher,
        "model": cell.model,
        "data": cell.data,
        "batch_size": cell.batch_size,
        "scaling": cell.scaling,
        "status": row.status,
        "reason": row.reason,
        "marks": " ".join(summary.marks) or None,
        "launches_ok": row.ok,
        "launches": row.wanted,
        "base": "; ".join(map(describe_base, summary.bases)) or None,
        "attempt": row.attempt,
        "network": _find_network(summary),
        "stopped": row.stopped,
        "per_device": _per_device(summary),
        "disturbed": len(summary.disturbed) if summary.measures else None,
        "repeated": row.repeated if summary.measures else None,
        "ratios": None if summary.paired is None else _PAIRED[summary.paired],
        **{f"{name}_verdict": _verdict(summary, name) for name in _RATIOS},
        **summary.numbers,
    }


def _reach(summary: Summary, goal: float | None) -> dict[str, Any]:
    """Seconds and samples until the loss is reached; numbers if each launch does."""
    if goal is None or not summary.measures:
        return {}
    counted = summary.counted
    steps = [number for one in counted if (number := one.steps_to(goal)) is not None]
    if len(steps) < len(counted):
        known = any(np.isfinite(one.losses).all() for one in counted)
        said = f"reached in {len(steps)} of {len(counted)}" if steps else "not reached"
        return {"target": said if known else "not measured"}
    batch = summary.row.launches[0].record["shape"]["global_batch"]
    times = [one.seconds_of(n) for one, n in zip(counted, steps, strict=True)]
    samples = mean([batch * number for number in steps])
    if len({*steps}) == 1:
        samples = replace(samples, verdict=DETERMINISTIC)
    return {"target": "reached", "target_s": mean(times), "target_samples": samples}


def _torch(summary: Summary) -> str | None:
    """The versions of torch in its launches."""
    return "; ".join(sorted({one.torch for one in summary.measures})) or None


def _per_device(summary: Summary) -> Estimate | None:
    """Tokens/s of each device, as tables of language models have it."""
    number = summary.numbers.get("throughput")
    if number is None or summary.row.cell.unit != "tokens":
        return None
    return number.scaled(1 / summary.row.devices)


def _rates(measured: Sequence[Summary]) -> dict[str, dict[str, Estimate]]:
    """Heading -> cell -> throughput, or throughput of a device.

    Each unit has its own column.
    """
    found: dict[str, dict[str, Estimate]] = {}
    for summary in measured:
        name, unit = summary.row.id, f"{summary.row.cell.unit}/s"
        rates = {
            f"throughput ({unit})": summary.numbers.get("throughput"),
            f"of a device ({unit})": _per_device(summary),
        }
        for heading, rate in rates.items():
            if rate is not None:
                found.setdefault(heading, {})[name] = rate
    return found


def _verdict(summary: Summary, name: str) -> str | None:
    number = summary.numbers.get(name)
    return None if number is None else number.verdict or None


def _find_network(summary: Summary) -> str | None:
    """The ways that NCCL took in any launch."""
    ways = {find_network(launch.record) for launch in summary.row.launches} - {None}
    return "; ".join(sorted(map(str, ways))) or None


def _count(summaries: Sequence[Summary]) -> list[Note]:
    """How many cells have which status."""
    statuses = [summary.row.status for summary in summaries]
    counts = [f"{statuses.count(one)} {one}" for one in dict.fromkeys(sorted(statuses))]
    return [Note("cells", f"{len(summaries)}: {', '.join(counts)}.")]


def _show_measured(measured: Sequence[Summary], goal: float | None) -> Grid:
    shown = {
        heading: name
        for heading, name in _ESTIMATES.items()
        if any(name in summary.numbers for summary in measured)
    }
    rates = _rates(measured)
    goals = [_reach(summary, goal) for summary in measured] if goal is not None else []
    marks = any(summary.marks for summary in measured)
    networks = {summary.row.id: _find_network(summary) for summary in measured}
    network = any(networks.values())
    several = len({_torch(summary) for summary in measured}) > 1
    stopped = any(summary.row.stopped for summary in measured)
    columns = {"cell": False, "launches": False}
    columns |= {"stopped": False} if stopped else {}
    columns |= dict.fromkeys([*rates, *shown], True)
    if goals:
        columns |= {f"to loss {goal:g} (s)": True, "to it (samples)": True}
    columns |= {"network": False} if network else {}
    columns |= {"torch": False} if several else {}
    columns |= {"marks": False} if marks else {}
    rows = [
        [
            Text(summary.row.id, href=f"cells/{summary.row.id}.json"),
            Text(f"{summary.row.ok}/{summary.row.wanted}"),
            *([Text(summary.row.stopped or "")] if stopped else []),
            *(show_estimate(rate.get(summary.row.id)) for rate in rates.values()),
            *(show_estimate(summary.numbers.get(name)) for name in shown.values()),
            *(_show_goal(goals[place]) if goals else []),
            *([Text(networks[summary.row.id] or "")] if network else []),
            *([Text(_torch(summary) or "")] if several else []),
            *([Text(", ".join(summary.marks))] if marks else []),
        ]
        for place, summary in enumerate(measured)
    ]
    return Grid(_TITLE, columns, rows)


def _show_goal(reached: dict[str, Any]) -> list[Text]:
    if "target_s" not in reached:
        return [Text(reached["target"]), Text("")]
    return [show_estimate(reached[name]) for name in ("target_s", "target_samples")]


def _show_others(summaries: Sequence[Summary]) -> list[Grid]:
    """A row for each reason why cells have no numbers."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for summary in summaries:
        if not summary.measures:
            key = (summary.row.status, summary.row.reason or "")
            reasons.setdefault(key, []).append(summary.row.id)
    rows = [
        [Text(status), Text(str(len(ids))), Text(_list_names(ids)), Text(reason)]
        for (status, reason), ids in reasons.items()
    ]
    columns = {"status": False, "count": True, "cells": False, "reason": False}
    return [Grid("Cells without numbers", columns, rows)] if rows else []


def _list_names(ids: Sequence[str]) -> str:
    named = ", ".join(ids[:_MOST_NAMES])
    more = len(ids) - _MOST_NAMES
    return f"{named} and {more} more" if more > 0 else named


SECTION = Section(
    name="table",
    title=_TITLE,
    reading="",
    order=0,
    make=make,
    columns={
        **dict.fromkeys(("experiment", "cell", "strategy", "backend", "topology"), str),
        "devices": int,
        **dict.fromkeys(("launcher", "model", "data"), str),
        "batch_size": int,
        **dict.fromkeys(("scaling", "status", "reason", "marks"), str),
        "launches_ok": int,
        "launches": int,
        **dict.fromkeys(
            ("throughput", "step_ms", "epoch_s", "total_s", "speedup"), Estimate
        ),
        "base": str,
        **dict.fromkeys(("efficiency", "memory_mib", "accuracy"), Estimate),
        "attempt": int,
        "network": str,
        "stopped": str,
        "ratios": str,
        **{f"{name}_verdict": str for name in _RATIOS},
        "unit": str,
        "per_device": Estimate,
        "disturbed": int,
        "repeated": int,
        "setup_memory_mib": Estimate,
        "torch": str,
        "target": str,
        "target_s": Estimate,
        "target_samples": Estimate,
    },
    optional=[
        *("network", "stopped", "unit", "per_device", "setup_memory_mib", "torch"),
        *("target", "target_s", "target_samples"),
    ],
    appendix=False,
    # Version 2 has other reasons for rows that are not measured than version 1. Version
    # 3 pairs ratios by round, and all efficiencies of a workload have the same base.
)
