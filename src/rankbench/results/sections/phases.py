"""The plot of where the time of a step goes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from rankbench.results.elements.panels import draw_rows
from rankbench.results.elements.text import figures
from rankbench.results.numbers.series import Panel
from rankbench.results.numbers.summary import Summary

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
    measures = [m for panel in panels for point in panel.points for m in point.measures]
    colors = color_phases([name for one in measures for name in one.phase_ms])
    draw_row = partial(_draw_bar, colors=colors)
    label = "ms per step (mean over ranks, steps and launches)"
    figure = draw_rows(
        panels, draw_row, width=width, row=_BAR, label=label, margin=0.08
    )
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


def _draw_bar(
    axes: Axes, point: Summary, place: int, *, colors: dict[str, Any]
) -> None:
    left = 0.0
    for phase in colors:
        width = _mean_ms(point, phase)
        axes.barh(place, width, 0.7, left=left, **_style(phase, colors))
        left += width
    end, right_of_it = (left, place), (4, 0)
    axes.annotate(
        figures(left), end, right_of_it, textcoords="offset points", va="center", size=8
    )


def _style(phase: str, colors: dict[str, Any]) -> dict[str, Any]:
    hatch = _HATCHES.get(phase)
    return {"facecolor": colors[phase], "edgecolor": "white", "hatch": hatch, "lw": 0}


def _mean_ms(point: Summary, phase: str) -> float:
    """0 for a phase that the strategy does not have."""
    values = [launch.phase_ms.get(phase, 0.0) for launch in point.measures]
    return sum(values) / len(values)
