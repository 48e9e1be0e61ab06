"""Why a cell does not scale better: what bounds it, and what overlap could give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rankbench.results.elements.section import Content, Section
from rankbench.results.elements.text import Grid, Note, Text, figures
from rankbench.results.numbers.exchange import Sweep, find_sweeps
from rankbench.results.numbers.found import Found
from rankbench.results.numbers.pipelines import bubbles, find_pipelines
from rankbench.results.numbers.summary import Summary

BOUNDS = ("compute", "communication", "input", "launch")

_TITLE = "What bounds each cell"

_WORDS = {
    "compute": "compute",
    "communication": "wait for other ranks",
    "input": "wait for data",
    "launch": "leave the GPU idle",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """One cell.

    Attributes:
        step_ms: mean time of a step.
        parts: name in `BOUNDS` -> milliseconds of it. Communication is not there if the
            phases of the strategy do not separate it from computation.
        exchange_ms: time of the exchange of a step by itself; None if unknown.
    """

    cell: str
    step_ms: float
    parts: Mapping[str, float]
    exchange_ms: float | None

    @property
    def name(self) -> str:
        """The largest part. Hidden communication counts as long as its exchange."""
        if "communication" not in self.parts and self.exchange_ms is not None:
            hidden = min(self.exchange_ms, self.parts["compute"])
            known = {**self.parts, "communication": hidden}
            known["compute"] -= hidden
            return max(known, key=lambda part: known[part])
        return max(self.parts, key=lambda part: self.parts[part])

    @property
    def at_best(self) -> float | None:
        """Speedup over this row with perfect overlap; None if unknown."""
        exposed = self.parts.get("communication")
        if exposed is None or self.exchange_ms is None:
            return None
        return self.step_ms / max(self.step_ms - exposed, self.exchange_ms)


def make(found: Found) -> Content | None:
    """A row for each cell that is ok and has several ranks."""
    bounds = find_bounds(found.summaries)
    if not bounds:
        return None
    rows = [
        {
            "cell": one.cell,
            "bound": one.name,
            "step_ms": one.step_ms,
            **one.parts,
            "exchange_ms": one.exchange_ms,
            "at_best": one.at_best,
        }
        for one in bounds
    ]
    notes = [Note(one.cell, in_words(one)) for one in bounds]
    return Content(rows=rows, grids=[_show(bounds)], notes=notes)


def find_bounds(summaries: Sequence[Summary]) -> list[Bound]:
    """The bounds of the rows that are ok and have several ranks."""
    by_cell: dict[str, list[Sweep]] = {}
    for sweep in find_sweeps(summaries):
        by_cell.setdefault(sweep.cell, []).append(sweep)
    pipelines = {summary.row.id for summary in find_pipelines(summaries)}
    return [
        _find(
            summary,
            by_cell.get(summary.row.id, []),
            is_pipeline=summary.row.id in pipelines,
        )
        for summary in summaries
        if summary.measures and len(summary.row.launches[0].record["ranks"]) > 1
    ]


def in_words(bound: Bound) -> str:
    """The numbers of a row as sentences."""
    parts = sorted(bound.parts.items(), key=lambda part: -part[1])
    shares = [
        f"{100 * ms / bound.step_ms:.0f} % {_WORDS[name]}"
        for name, ms in parts
        if ms / bound.step_ms >= 0.005
    ]
    text = f"{bound.name}-bound: of {figures(bound.step_ms)} ms, {', '.join(shares)}."
    if bound.exchange_ms is not None:
        alone = f"{figures(round(bound.exchange_ms, 3))} ms"
        text += f" The exchange of a step takes {alone} by itself."
    if bound.at_best is not None:
        factor = figures(round(bound.at_best, 2))
        text += f" More overlap could make it at most {factor} times as fast."
    elif "communication" not in bound.parts:
        text += " Its phases do not separate communication from computation."
    return text


def _show(bounds: Sequence[Bound]) -> Grid:
    columns = {"cell": False, "bound": False, "step (ms)": True}
    columns |= {f"{name} (%)": True for name in BOUNDS}
    columns |= {"exchange (ms)": True, "at best": True}
    rows = [
        [
            Text(one.cell),
            Text(f"{one.name}-bound"),
            Text(figures(one.step_ms)),
            *(Text(_percent(one, name)) for name in BOUNDS),
            _show_number(one.exchange_ms),
            _show_number(one.at_best, "x"),
        ]
        for one in bounds
    ]
    return Grid(_TITLE, columns, rows)


def _find(summary: Summary, sweeps: Sequence[Sweep], *, is_pipeline: bool) -> Bound:
    phases = {
        name: float(np.median([one.phase_ms[name] for one in summary.measures]))
        for name in summary.measures[0].phase_ms
    }
    step = sum(phases.values())
    parts = {"input": phases.get("load", 0.0) + phases.get("transfer", 0.0)}
    if is_pipeline:
        waiting = float(np.median(bubbles(summary)))
        parts["communication"] = phases["pipeline"] * waiting
    elif "communication" in phases:
        parts["communication"] = phases["communication"]
    if idle := _idle_share(summary):
        parts["launch"] = max(0.0, idle * step - sum(parts.values()))
    parts["compute"] = step - sum(parts.values())
    return Bound(
        cell=summary.row.id,
        step_ms=step,
        parts=parts,
        exchange_ms=_exchange_ms(summary, sweeps),
    )


def _idle_share(summary: Summary) -> float:
    """Share of the window in which no kernel ran on the GPUs; 0 if it is unknown."""
    busy = [
        device["utilisation_mean"]
        for launch in summary.row.launches
        for device in launch.record.get("devices") or []
        if device.get("utilisation_mean") is not None
    ]
    return 1 - float(np.mean(busy)) if busy else 0.0


def _exchange_ms(summary: Summary, sweeps: Sequence[Sweep]) -> float | None:
    """None if the strategy exchanges other bytes than those of the weights."""
    model = summary.row.launches[0].record.get("model")
    if not sweeps or not model or any(sweep.times_weights is None for sweep in sweeps):
        return None
    size = model["parameter_bytes"]
    return 1e3 * sum(
        sweep.times_weights * sweep.seconds_for(size)
        for sweep in sweeps
        if sweep.times_weights is not None
    )


def _percent(bound: Bound, part: str) -> str:
    ms = bound.parts.get(part)
    return "" if ms is None else f"{100 * ms / bound.step_ms:.0f}"


def _show_number(value: float | None, unit: str = "") -> Text:
    return Text("" if value is None else f"{figures(round(value, 3))}{unit}")


SECTION = Section(
    name="bounds",
    title=_TITLE,
    reading=(
        "Cells with several ranks. A step is split by its phases (medians over "
        "launches), and the largest part is the bound. input: waiting for data and "
        "copying it. communication: the part of it that no computation hides; in a "
        "pipeline, the time in which ranks wait for each other. launch: time in which "
        "the GPU was idle for no other reason. compute: the rest. exchange: how long "
        "the bytes of a step take by themselves, from the sweep of the same cell. at "
        "best: the speedup over this row if computation hid the whole exchange."
    ),
    order=20,
    make=make,
    columns={
        "cell": str,
        "bound": str,
        **dict.fromkeys(("step_ms", *BOUNDS, "exchange_ms", "at_best"), float),
    },
    appendix=False,
)
