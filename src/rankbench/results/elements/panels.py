"""What plots with a panel for each question share: figure, axes, colors and legend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rankbench.results.numbers.series import Panel, is_shared
from rankbench.results.numbers.summary import Summary

# Above so many devices their axis is logarithmic.
_LINEAR_UP_TO = 8
_LEGEND_WIDTH = 100  # characters
_MARKERS = "osD^vPX*"

T = TypeVar("T")


def make_figure(heights: Sequence[float], *, width: float) -> tuple[Figure, list[Axes]]:
    """Panels below each other.

    Args:
        heights: of the panels, in inches.
        width: of the figure, in inches.
    """
    figure = Figure(figsize=(width, sum(heights) + 0.5), layout="constrained")
    grid = figure.subplots(len(heights), squeeze=False, height_ratios=list(heights))
    return figure, list(grid[:, 0])


def add_legend(figure: Figure, handles: Sequence[Artist], *, columns: int = 4) -> None:
    """Below all panels, in as many columns as there is room for."""
    longest = max(len(str(handle.get_label())) for handle in handles)
    fit = max(1, min(columns, _LEGEND_WIDTH // (longest + 6)))
    figure.legend(handles=handles, loc="outside lower center", ncols=fit)


def color_series(panels: Sequence[Panel]) -> dict[str, Any]:
    """A color for the name of each series, the same in all panels and plots."""
    names = list(dict.fromkeys(s.name for panel in panels for s in panel.series))
    kind = "colorblind" if len(names) <= 10 else "husl"
    return dict(zip(names, sns.color_palette(kind, len(names)), strict=True))


def choose_markers(things: Sequence[T]) -> dict[T, str]:
    """A marker for each, so that they differ in grey too."""
    return {thing: _MARKERS[i % len(_MARKERS)] for i, thing in enumerate(things)}


def fill_of(point: Summary, color: Any) -> Any:
    """Markers of cells whose ranks share cores or GPUs are hollow."""
    return "white" if is_shared(point) else color


def scale_devices(panel: Panel) -> tuple[list[int], bool]:
    """The numbers of devices that occur, and whether their axis is linear."""
    devices = sorted({point.row.devices for point in panel.points})
    return devices, devices[-1] <= _LINEAR_UP_TO


def finish_devices(axes: Axes, panel: Panel) -> None:
    """Title, and the axis of devices."""
    devices, linear = scale_devices(panel)
    axes.set_title(panel.title, parse_math=False)
    if not linear:
        axes.set_xscale("log", base=2)
    axes.set_xticks(devices, [str(count) for count in devices])
    axes.grid(visible=False, axis="x")
    sns.despine(ax=axes)


def draw_rows(
    panels: Sequence[Panel],
    draw_row: Callable[[Axes, Summary, int], None],
    *,
    width: float,
    row: float,
    label: str,
    margin: float = 0.04,
) -> Figure:
    """A line of its own for each cell, by name.

    Args:
        panels: at least one.
        draw_row: draws a cell at a place of the vertical axis.
        width: of the figure, in inches.
        row: the height of a line, in inches.
        label: of the horizontal axis.
        margin: beside what is drawn, as a share of the axis.
    """
    heights = [row * len(panel.points) + 0.75 for panel in panels]
    figure, grid = make_figure(heights, width=width)
    for axes, panel in zip(grid, panels, strict=True):
        names: list[str] = []
        for series in panel.series:
            for point in series.points:
                draw_row(axes, point, len(names))
                note = " (oversubscribed)" if is_shared(point) else ""
                names.append(f"{series.name} {point.row.cell.topology}{note}")
        axes.set_title(panel.title, parse_math=False)
        axes.set_yticks(range(len(names)), names, parse_math=False)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.margins(x=margin)
        axes.grid(visible=False, axis="y")
        sns.despine(ax=axes, left=True)
    grid[-1].set_xlabel(label)
    return figure
