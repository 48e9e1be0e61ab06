"""The plot of parallel efficiency against devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rankbench.results.elements.panels import (
    add_legend,
    choose_markers,
    color_series,
    fill_of,
    finish_devices,
    make_figure,
    scale_devices,
)
from rankbench.results.numbers.series import Panel, is_shared
from rankbench.results.numbers.summary import Summary

COLUMNS = (
    *("panel", "series", "cell", "devices"),
    *("efficiency", "efficiency_lo", "efficiency_hi"),
)

_HEIGHT = 3.0
# Between the points of series that have equally many devices, of the axis' unit.
_APART = 0.06


def draw_efficiency(panels: Sequence[Panel], *, width: float) -> Figure:
    """Efficiency against devices: medians with their intervals; 1 is the ideal.

    Args:
        panels: at least one.
        width: of the figure, in inches.
    """
    figure, grid = make_figure([_HEIGHT] * len(panels), width=width)
    colors = color_series(panels)
    markers = choose_markers(list(colors))
    for axes, panel in zip(grid, panels, strict=True):
        _draw_panel(axes, panel, colors, markers)
    grid[-1].set_xlabel("devices")
    handles = [
        Line2D([], [], color=colors[name], marker=markers[name], ms=5, label=name)
        for name in colors
    ]
    handles.append(Line2D([], [], color="0.5", ls="--", lw=1, label="ideal"))
    if any(is_shared(point) for panel in panels for point in panel.points):
        shared = Line2D([], [], color="0.4", ls="", marker="o", mfc="white")
        shared.set_label("oversubscribed")
        handles.append(shared)
    add_legend(figure, handles)
    return figure


def make_frame(panels: Sequence[Panel]) -> pd.DataFrame:
    """The data of the plot: a row for each cell that has an efficiency."""
    rows = [
        (panel.title, series.name, point.row.id, point.row.devices, *values)
        for panel in panels
        for series in panel.series
        for point in series.points
        if (number := point.numbers.get("efficiency"))
        for values in [(number.value, number.low, number.high)]
    ]
    types = dict.fromkeys(COLUMNS[4:], "float64")
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(types)


def _draw_panel(
    axes: Axes, panel: Panel, colors: dict[str, Any], markers: dict[str, str]
) -> None:
    _, linear = scale_devices(panel)
    for place, series in enumerate(panel.series):
        shift = _APART * (place - (len(panel.series) - 1) / 2)

        def x_of(point: Summary, shift: float = shift) -> float:
            count = point.row.devices
            return count + shift if linear else count * 2.0**shift

        color = colors[series.name]
        for line in series.lines:
            known = [point for point in line if "efficiency" in point.numbers]
            y = [point.numbers["efficiency"].value for point in known]
            axes.plot([x_of(point) for point in known], y, color=color, lw=1.1)
        for point in series.points:
            if number := point.numbers.get("efficiency"):
                if number.low is not None and number.high is not None:
                    axes.vlines(x_of(point), number.low, number.high, color=color)
                style = {"mfc": fill_of(point, color), "mec": color, "ms": 5}
                axes.plot(x_of(point), number.value, markers[series.name], **style)
    axes.axhline(1, color="0.5", ls="--", lw=1, zorder=1)
    axes.set_ylabel("efficiency")
    axes.set_ylim(0, max(1.08, axes.get_ylim()[1]))
    finish_devices(axes, panel)
    axes.minorticks_off()
