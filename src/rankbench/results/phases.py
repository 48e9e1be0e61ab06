"""The plot of where the time of a step goes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from rankbench.results.series import Panel, is_shared
from rankbench.results.summary import Summary
from rankbench.results.text import figures

# Phases in the order of a step, each with its place in seaborn's colorblind palette.
PHASES = {
    "load": 7,
    "transfer": 8,
    "forward": 9,
    "backward": 0,
    "communication": 3,
    "update": 2,
}
COLUMNS = ("panel", "series", "cell", "phase", "ms")

_OTHER_PHASES = (1, 4, 5, 6)
# So that they can be told apart in grey as well.
_HATCHES = {"load": "...", "transfer": "xx", "communication": "///", "update": "\\\\\\"}
_BAR = 0.3


def draw_phases(panels: Sequence[Panel], *, width: float) -> Figure:
    """Stacked bars: mean milliseconds of a step by phase, for every cell that is ok.

    Args:
        panels: at least one.
        width: of the figure, in inches.
    """
    bars = [len(panel.points) for panel in panels]
    heights = [_BAR * count + 0.75 for count in bars]
    figure = Figure(figsize=(width, sum(heights) + 0.4), layout="constrained")
    grid = figure.subplots(len(panels), squeeze=False, height_ratios=heights)[:, 0]
    measures = [m for panel in panels for point in panel.points for m in point.measures]
    colors = color_phases([name for one in measures for name in one.phase_ms])
    for axes, panel in zip(grid, panels, strict=True):
        _draw_bars(axes, panel, colors)
    grid[-1].set_xlabel("ms per step (mean over ranks, steps and launches)")
    handles = [Patch(label=phase, **_style(phase, colors)) for phase in colors]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    return figure


def make_frame(panels: Sequence[Panel]) -> pd.DataFrame:
    """The data of the plot: a row for each phase of each cell."""
    rows = [
        (panel.title, series.name, point.row.id, phase, _mean_ms(point, phase))
        for panel in panels
        for series in panel.series
        for point in series.points
        for phase in point.measures[0].phase_ms
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype({"ms": "float64"})


def color_phases(names: Iterable[str]) -> dict[str, Any]:
    """Phases that occur, in the order of a step, others after it; and their colors."""
    found = set(names)
    ordered = [p for p in PHASES if p in found] + sorted(found - PHASES.keys())
    others = itertools.cycle(_OTHER_PHASES)
    palette = sns.color_palette("colorblind")
    return {p: palette[PHASES[p] if p in PHASES else next(others)] for p in ordered}


def _draw_bars(axes: Axes, panel: Panel, colors: dict[str, Any]) -> None:
    labels: list[str] = []
    for series in panel.series:
        for point in series.points:
            left, place = 0.0, len(labels)
            for phase in colors:
                width = _mean_ms(point, phase)
                axes.barh(place, width, 0.7, left=left, **_style(phase, colors))
                left += width
            axes.annotate(
                figures(left),
                (left, place),
                (4, 0),
                textcoords="offset points",
                va="center",
                size=8,
            )
            note = " (oversubscribed)" if is_shared(point) else ""
            labels.append(f"{series.name} {point.row.cell.topology}{note}")
    axes.set_title(panel.title, parse_math=False)
    axes.set_yticks(range(len(labels)), labels, parse_math=False)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.margins(x=0.08)
    axes.grid(visible=False, axis="y")
    sns.despine(ax=axes, left=True)


def _style(phase: str, colors: dict[str, Any]) -> dict[str, Any]:
    hatch = _HATCHES.get(phase)
    return {"facecolor": colors[phase], "edgecolor": "white", "hatch": hatch, "lw": 0}


def _mean_ms(point: Summary, phase: str) -> float:
    """0 for a phase that the strategy does not have."""
    values = [launch.phase_ms.get(phase, 0.0) for launch in point.measures]
    return sum(values) / len(values)
