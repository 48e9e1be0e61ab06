"""The table: one row for every planned cell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rankbench.cell import AUTO
from rankbench.results.elements.notes import collect_notes
from rankbench.results.elements.section import Content, Section
from rankbench.results.elements.text import (
    Grid,
    Note,
    Text,
    describe_base,
    figures,
    show_estimate,
)
from rankbench.results.numbers.hardware import (
    find_energy,
    find_network,
    mfu_of_launches,
)
from rankbench.results.numbers.result_set import ResultSet
from rankbench.results.numbers.series import Panel, find_controls
from rankbench.results.numbers.statistics import Estimate, mean
from rankbench.results.numbers.summary import DETERMINISTIC, Summary

_TITLE = "Cells"

_RATIOS = ("speedup", "efficiency")
_PAIRED = {True: "paired", False: "unpaired"}

_MIB_PER_GIB = 1024

_CONTROLS = "Controls: strategies for several devices, on one"

# Heading of the topology: hosts x devices of each host.
_PLACES = "hosts x devices"

# If more cells share a reason, a document names only the first ones.
_MOST_NAMES = 4


def make(found: ResultSet) -> Content:
    """A row for every cell; documents collapse those without numbers."""
    experiment, summaries = found.experiment, found.rows
    # Without tokens all are samples/s, as in tables that have been published.
    has_tokens = any(summary.cell.unit == "tokens" for summary in summaries)
    goal = found.target
    builds = {build for summary in summaries if (build := _torch(summary))}
    statuses = [summary.status for summary in summaries]
    counts = [f"{statuses.count(one)} {one}" for one in dict.fromkeys(sorted(statuses))]
    return Content(
        rows=[
            {
                "experiment": experiment,
                **_row(summary, found.peaks),
                **_reach(summary, goal),
            }
            | ({"unit": f"{summary.cell.unit}/s"} if has_tokens else {})
            | ({"torch": _torch(summary)} if len(builds) > 1 else {})
            for summary in summaries
        ],
        grids=[*_show_measured(found), *_show_others(found.reasons)],
        before=[Note("cells", f"{len(summaries)}: {', '.join(counts)}.")],
        notes=collect_notes(summaries),
    )


def _row(summary: Summary, peaks: Mapping[str, float]) -> dict[str, Any]:
    cell = summary.cell
    return {
        "cell": summary.id,
        "strategy": cell.strategy,
        "backend": cell.backend,
        "topology": cell.topology,
        "devices": summary.devices,
        "launcher": cell.launcher,
        "model": cell.model,
        "data": cell.data,
        "batch_size": cell.batch_size,
        "scaling": cell.scaling,
        "status": summary.status,
        "reason": summary.reason,
        "marks": " ".join(summary.marks) or None,
        "launches_ok": summary.ok,
        "launches": summary.wanted,
        "base": "; ".join(map(describe_base, summary.bases)) or None,
        "attempt": summary.attempt,
        "env": " ".join(f"{k}={v}" for k, v in cell.env.items()) or None,
        "image": None if cell.image == AUTO else cell.image,
        "partition": cell.partition,
        "network": _find_network(summary),
        "per_device": _per_device(summary),
        "disturbed": len(summary.disturbed) if summary.measures else None,
        "repeated": summary.repeated if summary.measures else None,
        "ratios": None if summary.paired is None else _PAIRED[summary.paired],
        "global_batch": _global_batch(summary),
        "mfu_pct": _find_mfu(summary, peaks),
        **{f"{name}_verdict": _verdict(summary, name) for name in _RATIOS},
        **summary.numbers,
        "estimated_memory_mib": summary.estimated_mib,
        **find_energy(summary),
    }


def _reach(summary: Summary, goal: tuple[str, float] | None) -> dict[str, Any]:
    """Seconds and samples until the goal is reached; numbers if each launch does."""
    if goal is None or not summary.measures:
        return {}
    counted = summary.counted
    steps = [number for one in counted if (number := one.steps_to(*goal)) is not None]
    if len(steps) < len(counted):
        known = any(
            np.isfinite(one.losses).all()
            if goal[0] == "loss"
            else one.accuracy is not None
            for one in counted
        )
        said = f"reached in {len(steps)} of {len(counted)}" if steps else "not reached"
        return {"target": said if known else "not measured"}
    batch = summary.launches[0].record["shape"]["global_batch"]
    times = [one.seconds_of(n) for one, n in zip(counted, steps, strict=True)]
    samples = mean([batch * number for number in steps])
    if len({*steps}) == 1:
        samples = replace(samples, verdict=DETERMINISTIC)
    return {"target": "reached", "target_s": mean(times), "target_samples": samples}


def _torch(summary: Summary) -> str | None:
    """The versions of torch in its launches."""
    return "; ".join(sorted({one.torch for one in summary.measures})) or None


def _per_device(summary: Summary) -> Estimate | None:
    number = summary.numbers.get("throughput")
    return None if number is None else number.scaled(1 / summary.devices)


def _global_batch(summary: Summary) -> int | None:
    """Samples of a step, of all replicas."""
    if not summary.measures:
        return None
    shape = summary.launches[0].record.get("shape") or {}
    return shape.get("global_batch")


def _find_mfu(summary: Summary, peaks: Mapping[str, float]) -> Estimate | None:
    """Model FLOPs utilisation in percent; None if it is unknown or impossible."""
    found = mfu_of_launches(summary, peaks)
    return mean(found) if found and max(found) <= 100 else None


def _verdict(summary: Summary, name: str) -> str | None:
    number = summary.numbers.get(name)
    return None if number is None else number.verdict or None


def _find_network(summary: Summary) -> str | None:
    """The ways that NCCL took in any launch."""
    ways = {find_network(launch.record) for launch in summary.launches} - {None}
    return "; ".join(sorted(map(str, ways))) or None


def _show_measured(found: ResultSet) -> Iterator[Grid]:
    """Workload by workload, the fastest row first; controls stand apart.

    A column without any value is left out.
    """
    rows: list[Summary] = []
    controls: list[Summary] = []
    for panel in found.panels:
        apart = find_controls(panel.points)
        for one in sorted(panel.points, key=lambda p: -p.numbers["throughput"].value):
            (controls if one.id in apart else rows).append(one)
    fields = {one.id: _fields(one, found) for one in found.measured}
    for name, words in _describe_variants(found.panels).items():
        fields[name]["variant"] = Text(words)
    counts = {count for one in found.measured for count in (one.ok, one.wanted)}
    builds = {_torch(one) for one in found.measured}
    alike = {"launches": len(counts) == 1, "torch": len(builds) == 1}
    columns = {
        heading: number
        for heading, number in _columns(found).items()
        if not alike.get(heading)
        and any(str(shown.get(heading, "")) for shown in fields.values())
    }
    for title, members in ((_TITLE, rows), (_CONTROLS, controls)):
        if members:
            own = [fields[one.id] for one in members]
            yield Grid(
                title,
                columns,
                [[one.get(heading, Text("")) for heading in columns] for one in own],
            )


def _columns(found: ResultSet) -> dict[str, bool]:
    """Heading -> whether it holds numbers. Each unit of throughput has its own."""
    units = sorted({one.cell.unit for one in found.measured})
    words, numbers = False, True
    return {
        **dict.fromkeys(("strategy", "backend", _PLACES, "variant"), words),
        # On a narrow terminal, the first ones are shown.
        **{f"throughput ({unit}/s)": numbers for unit in units},
        "efficiency": numbers,
        **{f"per device ({unit}/s)": numbers for unit in units},
        **dict.fromkeys(("memory (GiB)", "estimated (GiB)", "MFU (%)"), numbers),
        **dict.fromkeys(("J/sample", "W per device"), numbers),
        **dict.fromkeys(_goal_headings(found.target), numbers),
        "global batch": numbers,
        **dict.fromkeys(("launches", "network", "torch", "note"), words),
    }


def _goal_headings(goal: tuple[str, float] | None) -> tuple[str, ...]:
    if goal is None:
        return ()
    name, value = goal
    return (f"to {name} {value:g} (s)", "to it (samples)")


def _fields(summary: Summary, found: ResultSet) -> dict[str, Text]:
    """Heading -> what it shows of a summary."""
    cell, numbers = summary.cell, summary.numbers
    memory, batch = numbers.get("memory_mib"), _global_batch(summary)
    goal, energy = found.target, find_energy(summary)
    reached = _show_goal(_reach(summary, goal)) if goal is not None else ()
    return {
        "strategy": Text(cell.strategy, cell=summary.id),
        "backend": Text("" if cell.backend == "none" else cell.backend),
        _PLACES: Text(cell.topology),
        "global batch": Text("" if batch is None else str(batch)),
        f"throughput ({cell.unit}/s)": show_estimate(numbers.get("throughput")),
        f"per device ({cell.unit}/s)": show_estimate(_per_device(summary)),
        "efficiency": show_estimate(numbers.get("efficiency")),
        "memory (GiB)": show_estimate(memory and memory.scaled(1 / _MIB_PER_GIB)),
        "estimated (GiB)": Text(
            ""
            if summary.estimated_mib is None
            else figures(summary.estimated_mib / _MIB_PER_GIB)
        ),
        "J/sample": show_estimate(energy.get("j_per_sample")),
        "W per device": show_estimate(energy.get("watts")),
        "MFU (%)": show_estimate(_find_mfu(summary, found.peaks)),
        **dict(zip(_goal_headings(goal), reached, strict=True)),
        "launches": Text(f"{summary.ok}/{summary.wanted}"),
        "network": Text(_find_network(summary) or ""),
        "torch": Text(_torch(summary) or ""),
        "note": Text(", ".join(summary.marks)),
    }


def _show_goal(reached: dict[str, Any]) -> list[Text]:
    if "target_s" not in reached:
        return [Text(reached["target"]), Text("")]
    return [show_estimate(reached[name]) for name in ("target_s", "target_samples")]


def _describe_variants(panels: Sequence[Panel]) -> dict[str, str]:
    """Cell -> what sets it apart from rows of its strategy, backend and topology."""
    titles = [panel.title.split(", ") for panel in panels]
    shared = set(titles[0]).intersection(*titles) if titles else set()
    found = {}
    for panel, title in zip(panels, titles, strict=True):
        workload = [part for part in title if part not in shared]
        for series in panel.series:
            for one in series.points:
                words = [*series.words, *workload]
                found[one.id] = ", ".join(words)
    return found


def _show_others(reasons: Mapping[tuple[str, str], Sequence[str]]) -> list[Grid]:
    """A row for each reason why cells have no numbers."""
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
        "global_batch": int,
        "mfu_pct": Estimate,
        "estimated_memory_mib": float,
        **dict.fromkeys(("env", "image", "partition"), str),
        **dict.fromkeys(("j_per_sample", "watts"), Estimate),
        **dict.fromkeys(("sm_clock_mhz", "temperature_c"), float),
        **dict.fromkeys(("throttled", "energy_unknown"), str),
    },
    optional=[
        *("network", "unit", "setup_memory_mib", "torch"),
        *("target", "target_s", "target_samples", "mfu_pct"),
        *("estimated_memory_mib", "env", "image", "partition"),
        *("j_per_sample", "watts", "sm_clock_mhz", "temperature_c"),
        *("throttled", "energy_unknown"),
    ],
)
