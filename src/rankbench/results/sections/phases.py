"""Where the time of a step goes, how much of it waits for data, and what would help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rankbench.record import Record
from rankbench.results.elements import plotting
from rankbench.results.elements.plotting import Styles
from rankbench.results.elements.section import (
    Content,
    PanelPlot,
    Section,
    draw_panels,
)
from rankbench.results.elements.text import Note, figures, show_estimate
from rankbench.results.numbers.result_set import ResultSet, Summary
from rankbench.results.numbers.series import Panel
from rankbench.results.numbers.statistics import Estimate, mean

_ROW = 0.4  # inches

# What the step of the slowest rank takes longer than that of a mean rank.
SLOWEST = "slowest rank"
_COLOR = "0.85"

# The axis ends at this multiple of the longest mean step.
_BEYOND = 1.6


# If loading takes more than this share of a step, it limits how fast a cell trains.
DOMINATES = 0.5

PARTS = ("load_ms", "transfer_ms", "compute_ms", "load_share")


def make(found: ResultSet) -> Content | None:
    """Milliseconds of a step, mean over ranks, steps and launches: waiting for data,
    copying it to the device, and computing. Communication counts as computing. The plot
    has all phases.
    """
    rows, notes = [], []
    for summary in found.measured:
        workers, counted = summary.cell.num_workers, summary.counted
        parts = {name: mean(counted[name].to_numpy()) for name in PARTS}
        split = split_step(summary).items()
        row = {"cell": summary.id, "augment": summary.cell.augment, **parts}
        row["phases_ms"] = "; ".join(f"{phase} {figures(ms)}" for phase, ms in split)
        rows.append(row | {"num_workers": workers})
        share = parts["load_share"].value
        if share >= DOMINATES:
            said = f"loading takes {share:.0%} of the step with num_workers {workers}"
            remedy = _remedy(summary.records[0], workers)
            notes.append(Note(summary.id, f"{said}: {remedy}"))
    drawings = [*draw_panels(found, [_PLOT])]
    return Content(rows=rows, notes=notes, drawings=drawings) if rows else None


def _remedy(record: Record, workers: int) -> str:
    host = record["hosts"][0]
    ranks = sum(rank["host"] == host["host"] for rank in record["ranks"])
    if ranks * (1 + workers) < host["cores"]:
        return "more workers would help, more devices would not."
    return (
        f"ranks and workers have all {host['cores']} cores already; cheaper loading "
        "would help, more devices would not."
    )


def split_step(point: Summary) -> dict[str, float]:
    """Milliseconds by phase, mean over ranks; with the last part they are the step."""
    each = point.counted["phase_ms"].tolist()
    parts = {
        phase: sum(own.get(phase, 0.0) for own in each) / len(each) for phase in each[0]
    }
    rest = point.numbers["step_ms"].value - sum(parts.values())
    return {**parts, SLOWEST: max(0.0, rest)}


def _draw(grid: Sequence[plotting.Axes], panel: Panel, styles: Styles) -> None:
    """Mean time of a step by phase, over ranks and launches, and how much longer the
    slowest rank takes: together the step of the table. Beneath: every launch, and 5 to
    95 % of all steps. If launches differ by more than their steps do, more steps would
    not have shown it.
    """
    (axes,) = grid
    rows = plotting.each_row(panel)
    records = {point.id: point.records[0] for _, point in rows}
    samples = {n: figures(r["samples"] / r["steps"]) for n, r in records.items()}
    differ = len({*samples.values()}) > 1
    names, texts, beyond, ends = [], [], [], []
    _draw_bars(axes, [split_step(point) for _, point in rows])
    for place, (series, point) in enumerate(rows):
        # Beneath its bar.
        each, at = point.launches["step_ms"].tolist(), place + 0.3
        between = _steps_between(point)
        axes.hlines(at, *between, color="0.6", lw=0.8)
        plotting.draw_launches(axes, each, [at] * len(each), styles[series.name])
        name = plotting.name_point(series, point)
        names.append(f"{name} ({samples[point.id]})" if differ else name)
        texts.append(str(show_estimate(point.numbers["step_ms"])))
        beyond.append(each)
        ends += [*each, between[1]]
    longest = max(point.numbers["step_ms"].value for _, point in rows)
    end = min(_BEYOND * longest, 1.03 * max(ends))
    plotting.finish_rows(axes, names, texts, end=end, beyond=beyond)
    axes.set_xlabel("ms of a step" + (" (in brackets: its samples)" if differ else ""))


def _draw_bars(axes: plotting.Axes, steps: Sequence[Mapping[str, float]]) -> None:
    names = {name for parts in steps for name in parts} - {SLOWEST}
    colors = {**plotting.color_phases(names), SLOWEST: _COLOR}
    left = np.zeros(len(steps))
    for phase, color in colors.items():
        widths = np.array([parts.get(phase, 0.0) for parts in steps])
        places = np.arange(len(steps)) - 0.1
        axes.barh(places, widths, 0.5, left=left, color=color, lw=0)
        left += widths


def _steps_between(point: Summary) -> tuple[float, float]:
    """Milliseconds that 5 %, and that 95 % of all steps stay below."""
    steps = np.concatenate(point.launches["steps_s"].tolist())
    low, high = np.quantile(1e3 * steps, (0.05, 0.95))
    return float(low), float(high)


def _explain(panels: Sequence[Panel]) -> Sequence[plotting.Artist]:
    from matplotlib.patches import Patch

    points = [point for panel in panels for point in panel.points]
    names = {name for p in points for name in p.counted["phase_ms"].iloc[0]}
    phases = plotting.color_phases(names)
    return [
        *(Patch(color=color, label=phase) for phase, color in phases.items()),
        Patch(color=_COLOR, label=f"{SLOWEST}'s extra"),
    ]


_PLOT = PanelPlot(
    name="phases",
    question="Where does the time of a step go?",
    height=lambda panel: _ROW * len(panel.points) + 0.7,
    draw=_draw,
    lines={"5 to 95 % of steps": "-"},
    legend=_explain,
    explains="launches",
)

SECTION = Section(
    title="Phases of a step",
    order=4,
    make=make,
    columns={
        "cell": (str, "cell"),
        "num_workers": (int, "num_workers"),
        "augment": (str, "augment"),
        "load_ms": (Estimate, "load (ms)"),
        "transfer_ms": (Estimate, "transfer (ms)"),
        "compute_ms": (Estimate, "compute (ms)"),
        "load_share": (Estimate, "load / step"),
        "phases_ms": str,
    },
)
