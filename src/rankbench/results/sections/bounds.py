"""Why a cell does not scale better: what bounds it, and what overlap could give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from rankbench.results.elements.content import Section
from rankbench.results.elements.notes import Note
from rankbench.results.elements.text import Grid, Text, figures, round_figures
from rankbench.results.numbers.summary import Summary
from rankbench.results.sections.collectives import Sweep
from rankbench.results.sections.pipeline import find_pipelines

TITLE = "What bounds each cell"

ABOUT = (
    "Cells with several ranks. A step is split by its phases (medians over launches); "
    "the largest part names the bound. input: waiting for data and copying it. "
    "communication: what no computation hides; of a pipeline, what its ranks wait for "
    "each other. launch: time in which the GPU had nothing to do although nothing else "
    "was waited for. compute: the rest. exchange: how long the bytes of a step take by "
    "themselves, by the sweep of the same cell. at best: the speedup over this very "
    "row if all of the exchange were hidden behind computation: the step cannot be "
    "shorter than either."
)

BOUNDS = ("compute", "communication", "input", "launch")
COLUMNS = ("cell", "bound", "step_ms", *BOUNDS, "exchange_ms", "at_best")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """One cell.

    Attributes:
        step_ms: mean time of a step.
        parts: milliseconds of it by name of `BOUNDS`; without communication where the
            phases of the strategy do not tell it from computation.
        exchange_ms: how long the exchange of a step takes by itself; None if unknown.
    """

    cell: str
    step_ms: float
    parts: Mapping[str, float]
    exchange_ms: float | None

    @property
    def name(self) -> str:
        """The largest part; where communication is in it unseen, what it would be."""
        if "communication" not in self.parts and self.exchange_ms is not None:
            hidden = min(self.exchange_ms, self.parts["compute"])
            known = {**self.parts, "communication": hidden}
            known["compute"] -= hidden
            return max(known, key=lambda part: known[part])
        return max(self.parts, key=lambda part: self.parts[part])

    @property
    def at_best(self) -> float | None:
        """Speedup over this row with perfect overlap; None if that cannot be told."""
        exposed = self.parts.get("communication")
        if exposed is None or self.exchange_ms is None:
            return None
        return self.step_ms / max(self.step_ms - exposed, self.exchange_ms)


def find_bounds(summaries: Sequence[Summary], sweeps: Sequence[Sweep]) -> list[Bound]:
    """Rows that are ok and have several ranks."""
    by_cell: dict[str, list[Sweep]] = {}
    for sweep in sweeps:
        by_cell.setdefault(sweep.cell, []).append(sweep)
    bubbles = {summary.row.id for summary in find_pipelines(summaries)}
    return [
        _find(
            summary,
            by_cell.get(summary.row.id, []),
            is_pipeline=summary.row.id in bubbles,
        )
        for summary in summaries
        if summary.measures and len(summary.row.launches[0].record["ranks"]) > 1
    ]


def make_frame(bounds: Sequence[Bound]) -> pd.DataFrame:
    """The columns of bounds.csv; numbers have 4 significant digits or are missing."""
    rows = [
        {
            "cell": one.cell,
            "bound": one.name,
            "step_ms": round_figures(one.step_ms),
            **{name: round_figures(ms) for name, ms in one.parts.items()},
            "exchange_ms": _round(one.exchange_ms),
            "at_best": _round(one.at_best),
        }
        for one in bounds
    ]
    types = dict.fromkeys(COLUMNS[2:], "float64")
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(types)


def show(bounds: Sequence[Bound]) -> Section | None:
    """Nothing where no cell has several ranks."""
    if not bounds:
        return None
    columns = {"cell": False, "bound": False, "step (ms)": True}
    columns |= {f"{name} (%)": True for name in BOUNDS}
    columns |= {"exchange (ms)": True, "at best": True}
    rows = [
        [
            Text(one.cell),
            Text(f"{one.name}-bound"),
            Text(figures(one.step_ms)),
            *(Text(_percent(one, name)) for name in BOUNDS),
            _show(one.exchange_ms),
            _show(one.at_best, "x"),
        ]
        for one in bounds
    ]
    return Section(
        title=TITLE,
        about=ABOUT,
        files=("bounds.csv",),
        grids=[Grid(TITLE, columns, rows)],
        notes=[Note(one.cell, in_words(one)) for one in bounds],
    )


def in_words(bound: Bound) -> str:
    """The figures of a row as sentences."""
    parts = sorted(bound.parts.items(), key=lambda part: -part[1])
    shares = [
        f"{100 * ms / bound.step_ms:.0f} % {_WORDS[name]}"
        for name, ms in parts
        if ms / bound.step_ms >= 0.005
    ]
    text = f"{bound.name}-bound: of {figures(bound.step_ms)} ms, {', '.join(shares)}."
    if bound.exchange_ms is not None:
        alone = f"{figures(round(bound.exchange_ms, 3))} ms"
        text += f" What its ranks exchange in a step takes {alone} by itself."
    if bound.at_best is not None:
        factor = figures(round(bound.at_best, 2))
        text += f" More overlap could make it {factor} times as fast at best."
    elif "communication" not in bound.parts:
        text += " Its phases do not tell communication from computation."
    return text


_WORDS = {
    "compute": "compute",
    "communication": "wait for other ranks",
    "input": "wait for data",
    "launch": "leave the GPU idle",
}


def _find(summary: Summary, sweeps: Sequence[Sweep], *, is_pipeline: bool) -> Bound:
    phases = {
        name: float(np.median([one.phase_ms[name] for one in summary.measures]))
        for name in summary.measures[0].phase_ms
    }
    step = sum(phases.values())
    parts = {"input": phases.get("load", 0.0) + phases.get("transfer", 0.0)}
    if is_pipeline:
        parts["communication"] = phases["pipeline"] * _bubble(summary)
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


def _bubble(summary: Summary) -> float:
    """Share of a step in which a rank of a pipeline waits."""
    return float(
        np.median(
            [
                np.mean([rank["details"]["bubble"] for rank in launch.record["ranks"]])
                for launch in summary.row.launches
            ]
        )
    )


def _idle_share(summary: Summary) -> float:
    """Share of the window in which no kernel ran on the GPUs; 0 where nobody knows."""
    busy = [
        device["utilisation_mean"]
        for launch in summary.row.launches
        for device in launch.record.get("devices") or []
        if device.get("utilisation_mean") is not None
    ]
    return 1 - float(np.mean(busy)) if busy else 0.0


def _exchange_ms(summary: Summary, sweeps: Sequence[Sweep]) -> float | None:
    """None where a strategy exchanges other bytes than the weights'."""
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


def _round(value: float | None) -> float | None:
    return None if value is None else round_figures(value)


def _show(value: float | None, unit: str = "") -> Text:
    return Text("" if value is None else f"{figures(round(value, 3))}{unit}")
