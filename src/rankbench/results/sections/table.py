"""The table: one row for every planned cell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rankbench.cell import AUTO, OF_QUEUE, REFERENCE
from rankbench.record import Record
from rankbench.results.elements.marks import MARKS
from rankbench.results.elements.section import Content, Row, Section, make_grid
from rankbench.results.elements.text import (
    Grid,
    Note,
    Text,
    describe_base,
)
from rankbench.results.numbers import hardware, statistics
from rankbench.results.numbers.launches import steps_to
from rankbench.results.numbers.result_set import DETERMINISTIC, ResultSet, Summary
from rankbench.results.numbers.series import Panel, find_controls
from rankbench.results.numbers.statistics import Estimate, mean

_TITLE = "Cells"

_PAIRED = {True: "paired", False: "unpaired"}

# Columns that have the name of an attribute of the cell, or of its summary.
_OF_CELL = (
    *("strategy", "backend", "topology", "launcher", "model", "data"),
    *("batch_size", "scaling"),
)
_OF_ROW = ("devices", "status", "reason", "attempt")

_MIB_PER_GIB = 1024

_CONTROLS = "Controls: strategies for several devices, on one"

# Heading of the topology: hosts x devices of each host.
_PLACES = "hosts x devices"

# If more cells share a reason, a document names only the first ones.
_MOST_NAMES = 4

SCALING = {
    "weak": "batch_size is per model replica: more devices, more samples in a step.",
    "strong": "batch_size is global: more devices share the same samples of a step.",
}


def make(found: ResultSet) -> Content:
    """A row for every cell; documents collapse those without numbers."""
    rows = {summary.id: _row(summary, found) for summary in found.rows}
    # Without tokens all are samples/s, as in tables that have been published.
    if any(summary.cell.unit == "tokens" for summary in found.rows):
        for summary in found.rows:
            rows[summary.id]["unit"] = f"{summary.cell.unit}/s"
    if len({row["torch"] for row in rows.values()} - {None}) < 2:
        for row in rows.values():
            del row["torch"]
    counts = Counter(summary.status for summary in found.rows)
    said = ", ".join(f"{counts[status]} {status}" for status in sorted(counts))
    return Content(
        rows=[*rows.values()],
        grids=[*_show_measured(found, rows), *_show_others(found.reasons)],
        before=[Note("cells", f"{len(rows)}: {said}.")],
        notes=[*_collect_notes(found.rows)],
    )


def _collect_notes(summaries: Sequence[Summary]) -> Iterator[Note]:
    """What a reader of the table must know: base, brackets, batch, marks, machine."""
    if any(s.numbers for s in summaries):
        yield from _of_numbers(summaries)
    for mark in sorted({mark for s in summaries for mark in s.marks}):
        if text := MARKS.get(mark.partition("(")[0]):
            yield Note(mark, text)
    records = [record for s in summaries for record in s.records]
    hosts = [_describe_host(host) for record in records for host in record["hosts"]]
    software = map(_describe_software, records)
    if records:
        yield Note("machine", "; ".join(_each_once([*hosts, *software])) + ".")


def _of_numbers(summaries: Sequence[Summary]) -> Iterator[Note]:
    scripts = any(s.cell.script is not None for s in summaries)
    base = "the same script" if scripts else REFERENCE
    bases = (s.efficiency_base for s in summaries)
    named = ", ".join(_each_once(describe_base(one) for one in bases if one))
    yield Note(
        "efficiency",
        f"throughput of a device / that of {base} on one device (in a workload without "
        "that row, of the strategy itself), with the same model, data and options: "
        f"{named or 'no such cell is ok'}.",
    )
    pairs = ""
    if any(s.paired for s in summaries):
        pairs = " Efficiencies are means of the ratios within rounds."
    yield Note(
        "brackets",
        f"{statistics.CONFIDENCE:.0%} intervals.{pairs} All efficiencies hold at once: "
        "a row differs from its base if, and only if, its bracket excludes 1. "
        "Throughputs and times are means over launches, without an interval: plots "
        f"show launches. None: fewer than {statistics.MIN_LAUNCHES} launches, or the "
        "base itself.",
    )
    within = f"equal: the bracket is within {statistics.MARGIN:.0%} of 1"
    told = {
        statistics.EQUAL: f"{within}, and includes 1.",
        statistics.UNTOLD: "the bracket includes 1: cannot be told. Not the same as "
        "equal.",
    }
    verdicts = {n.verdict for s in summaries for n in s.numbers.values()}
    yield from (Note(one, text) for one, text in told.items() if one in verdicts)
    kinds = (s.cell.scaling for s in summaries if s.cell.script is None)
    for kind in _each_once(kinds):
        yield Note(f"{kind} scaling", SCALING[kind])


def _describe_host(host: Record) -> str:
    names = [gpu["name"] for gpu in host["gpus"]]
    gpus = "".join(f"{names.count(name)} x {name}, " for name in _each_once(names))
    return f"{gpus}{host['cpu']}, {host['cores']} cores, {host['memory_gib']:.0f} GiB"


def _describe_software(record: Record) -> str:
    names = ("torch", "cuda", "nccl", "python")
    versions = [(name, record["software"].get(name)) for name in names]
    found = ", ".join(f"{name} {version}" for name, version in versions if version)
    image = record["image"]
    return f"{found}, in the image {image['name']}" if image else f"{found}, native"


def _row(summary: Summary, found: ResultSet) -> dict[str, Any]:
    """The values of table.csv."""
    cell, numbers = summary.cell, summary.numbers
    rate, record = numbers.get("throughput"), next(iter(summary.records), {})
    ways = {way for one in summary.records if (way := hardware.find_network(one))}
    return {
        "experiment": found.experiment,
        "cell": summary.id,
        **{name: getattr(cell, name) for name in _OF_CELL},
        **{name: getattr(summary, name) for name in _OF_ROW},
        "marks": " ".join(summary.marks) or None,
        "launches_ok": summary.ok,
        "launches": summary.wanted,
        "base": "; ".join(map(describe_base, summary.bases)) or None,
        "env": " ".join(f"{k}={v}" for k, v in cell.env.items()) or None,
        "image": None if cell.image == AUTO else cell.image,
        **cell.queue,
        "network": "; ".join(sorted(ways)) or None,
        "per_device": rate and rate.scaled(1 / summary.devices),
        "disturbed": len(summary.disturbed) if record else None,
        "repeated": summary.repeated if record else None,
        "ratios": None if summary.paired is None else _PAIRED[summary.paired],
        "global_batch": record["shape"].get("global_batch") if record else None,
        "mfu_pct": hardware.find_rates(summary, found.peaks).get("mfu_pct"),
        **numbers,
        **{
            f"{name}_verdict": numbers[name].verdict or None
            for name in ("speedup", "efficiency")
            if name in numbers
        },
        "torch": "; ".join(sorted({*summary.launches["torch"]})) or None,
        "estimated_memory_mib": summary.estimated_mib,
        **hardware.find_energy(summary),
        **_reach(summary, found.target),
    }


def _reach(summary: Summary, goal: tuple[str, float] | None) -> dict[str, Any]:
    """Seconds and samples until the goal is reached; numbers if each launch does."""
    if goal is None or summary.status != "ok":
        return {}
    counted = summary.counted
    each = zip(counted["losses"], counted["accuracy"], strict=True)
    reached = (steps_to(*one, *goal) for one in each)
    steps = [number for number in reached if number is not None]
    if len(steps) < len(counted):
        known = (
            any(np.isfinite(losses).all() for losses in counted["losses"])
            if goal[0] == "loss"
            else counted["accuracy"].notna().any()
        )
        said = f"reached in {len(steps)} of {len(counted)}" if steps else "not reached"
        return {"target": said if known else "not measured"}
    batch = summary.records[0]["shape"]["global_batch"]
    # Each step takes the mean time of the timed ones.
    times = counted["total_s"].to_numpy() * steps / summary.records[0]["steps"]
    samples = mean([batch * number for number in steps])
    if len({*steps}) == 1:
        samples = replace(samples, verdict=DETERMINISTIC)
    return {"target": "reached", "target_s": mean(times), "target_samples": samples}


def _show_measured(found: ResultSet, rows: Mapping[str, Row]) -> Iterator[Grid]:
    """Workload by workload, the fastest row first; controls stand apart.

    A column without any value is left out.
    """
    parts: dict[str, list[Summary]] = {_TITLE: [], _CONTROLS: []}
    for panel in found.panels:
        apart = find_controls(panel.points)
        for one in sorted(panel.points, key=lambda p: -p.rate):
            parts[_CONTROLS if one.id in apart else _TITLE].append(one)
    variants = _describe_variants(found.panels)
    units = sorted({one.cell.unit for one in found.measured})
    counts = {count for one in found.measured for count in (one.ok, one.wanted)}
    for title, members in parts.items():
        fields = [_show(one, rows[one.id], units, found.target) for one in members]
        for one, own in zip(members, fields, strict=True):
            own["variant"] = variants[one.id]
            if len(counts) < 2:
                del own["launches"]
        if fields:
            yield make_grid(title, fields)


def _show(
    summary: Summary, row: Row, units: Sequence[str], goal: tuple[str, float] | None
) -> dict[str, object]:
    """Heading -> what it shows of a row.

    On a narrow terminal, the first ones are shown. Each unit has columns of its own.
    """
    cell, memory, estimated = summary.cell, row["memory_mib"], summary.estimated_mib
    own = {unit: row if unit == cell.unit else {} for unit in units}
    name, value = goal or ("", 0.0)
    return {
        "strategy": Text(cell.strategy, cell=summary.id),
        "backend": "" if cell.backend == "none" else cell.backend,
        _PLACES: cell.topology,
        "variant": "",
        **{f"throughput ({unit}/s)": own[unit].get("throughput") for unit in units},
        "speedup": row.get("speedup"),
        "efficiency": row.get("efficiency"),
        "memory (GiB)": memory.scaled(1 / _MIB_PER_GIB),
        "estimated (GiB)": estimated and estimated / _MIB_PER_GIB,
        "MFU (%)": row["mfu_pct"],
        "J/sample": row.get("j_per_sample"),
        "W per device": row.get("watts"),
        f"to {name} {value:g} (s)": row.get("target_s", row.get("target")),
        "to it (samples)": row.get("target_samples"),
        "global batch": row["global_batch"],
        "launches": f"{summary.ok}/{summary.wanted}",
        "network": row["network"],
        "torch": row.get("torch"),
        "note": ", ".join(summary.marks),
    }


def _describe_variants(panels: Sequence[Panel]) -> dict[str, str]:
    """Cell -> what sets it apart from rows of its strategy, backend and topology."""
    titles = [panel.title.split(", ") for panel in panels]
    return {
        one.id: ", ".join(
            [*series.words, *(p for p in title if not all(p in t for t in titles))]
        )
        for panel, title in zip(panels, titles, strict=True)
        for series in panel.series
        for one in series.points
    }


def _show_others(reasons: Mapping[tuple[str, str], Sequence[str]]) -> list[Grid]:
    """A row for each reason why cells have no numbers."""
    rows = []
    for (status, reason), ids in reasons.items():
        more = len(ids) - _MOST_NAMES
        named = ", ".join(ids[:_MOST_NAMES]) + (f" and {more} more" * (more > 0))
        row = {"status": status, "count": len(ids), "cells": named, "reason": reason}
        rows.append(row)
    return [make_grid("Cells without numbers", rows)] if rows else []


def _each_once(texts: Iterable[str]) -> list[str]:
    """Each text once, in order of appearance."""
    return list(dict.fromkeys(texts))


SECTION = Section(
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
        # Means over launches, which have no interval: brackets are those of ratios.
        **dict.fromkeys(("throughput", "step_ms", "epoch_s", "total_s"), float),
        "speedup": Estimate,
        "base": str,
        **dict.fromkeys(("efficiency", "memory_mib", "accuracy"), Estimate),
        "attempt": int,
        "network": str | None,
        "ratios": str,
        **dict.fromkeys(("speedup_verdict", "efficiency_verdict"), str),
        "unit": str | None,
        "per_device": float,
        "disturbed": int,
        "repeated": int,
        "setup_memory_mib": Estimate | None,
        "torch": str | None,
        "target": str | None,
        "target_s": Estimate | None,
        "target_samples": Estimate | None,
        "global_batch": int,
        "mfu_pct": float | None,
        "estimated_memory_mib": float | None,
        **dict.fromkeys(("env", "image", *OF_QUEUE), str | None),
        **dict.fromkeys(("j_per_sample", "watts"), Estimate | None),
        **dict.fromkeys(("sm_clock_mhz", "temperature_c"), float | None),
        **dict.fromkeys(("throttled", "energy_unknown"), str | None),
    },
)
