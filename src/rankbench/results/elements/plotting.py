"""What plots share: colors, markers, intervals, axes and legends."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter

from rankbench.results.numbers.series import Panel, Series, is_shared
from rankbench.results.numbers.statistics import Estimate
from rankbench.results.numbers.summary import Summary

# With more devices than this, their axis is logarithmic.
_LINEAR_UP_TO = 8
_LEGEND_WIDTH = 100  # characters
_TITLE_WIDTH = 64  # characters
_MARKERS = "osD^vPX*"

# Distance between series with equal numbers of devices, in units of a linear axis.
_APART = 0.07

# Phases in the order of a step, each with its place in seaborn's colorblind palette.
_PHASES = {
    "load": 7,
    "transfer": 8,
    "forward": 9,
    "backward": 0,
    "communication": 3,
    "update": 2,
}
_OTHER_PHASES = (1, 4, 5, 6)

T = TypeVar("T")


def make_figure(heights: Sequence[float], *, width: float) -> tuple[Figure, list[Axes]]:
    """A figure with panels below each other.

    Args:
        heights: of the panels, in inches.
        width: of the figure, in inches.
    """
    figure = Figure(figsize=(width, sum(heights) + 0.5), layout="constrained")
    grid = figure.subplots(len(heights), squeeze=False, height_ratios=list(heights))
    return figure, list(grid[:, 0])


def add_legend(figure: Figure, handles: Sequence[Artist], *, columns: int = 4) -> None:
    """A legend below all panels, in as many columns as fit."""
    longest = max(len(str(handle.get_label())) for handle in handles)
    fit = max(1, min(columns, _LEGEND_WIDTH // (longest + 6)))
    figure.legend(handles=handles, loc="outside lower center", ncols=fit)


def choose_colors(things: Sequence[T]) -> dict[T, Any]:
    """A color for each."""
    kind = "colorblind" if len(things) <= 10 else "husl"
    return dict(zip(things, sns.color_palette(kind, len(things)), strict=True))


def choose_markers(things: Sequence[T]) -> dict[T, str]:
    """A marker for each, so that they differ in grey too."""
    return {thing: _MARKERS[i % len(_MARKERS)] for i, thing in enumerate(things)}


def color_series(panels: Sequence[Panel]) -> dict[str, Any]:
    """A color for the name of each series, the same in all panels and plots."""
    return choose_colors(
        list(dict.fromkeys(s.name for panel in panels for s in panel.series))
    )


def color_phases(names: Iterable[str]) -> dict[str, Any]:
    """The phases that occur, in the order of a step, and their colors."""
    found = set(names)
    ordered = [p for p in _PHASES if p in found] + sorted(found - _PHASES.keys())
    others = itertools.cycle(_OTHER_PHASES)
    palette = sns.color_palette("colorblind")
    return {p: palette[_PHASES[p] if p in _PHASES else next(others)] for p in ordered}


def draw_interval(
    axes: Axes, x: float, number: Estimate, *, color: Any, horizontal: bool = False
) -> None:
    """The interval of an estimate as a thick, pale line; nothing if it has none."""
    if number.interval:
        draw = axes.hlines if horizontal else axes.vlines
        draw(x, *number.interval, color=color, lw=4, alpha=0.3, zorder=2)


def draw_launches(
    axes: Axes,
    place: float,
    values: Sequence[float],
    number: Estimate,
    point: Summary,
    color: Any,
    *,
    marker: str = "o",
    horizontal: bool = False,
) -> None:
    """Every launch (small), their mean (large) and its interval, in one line.

    Args:
        place: on the other axis.
        values: of the launches.
        number: their mean.
        point: the cell. Its marker is hollow if its ranks share cores or GPUs.
        horizontal: whether the line is horizontal.
    """
    draw_interval(axes, place, number, color=color, horizontal=horizontal)
    fill = "white" if is_shared(point) else color
    for some, shape, style in (
        (values, "o", {"ms": 2.4, "mew": 0, "mfc": color, "alpha": 0.7}),
        ([number.value], marker, {"ms": 5.5, "mec": color, "mfc": fill}),
    ):
        places = [place] * len(some)
        x, y = (some, places) if horizontal else (places, some)
        axes.plot(x, y, shape, zorder=4, **style)


def name_point(series: Series, point: Summary) -> str:
    """``ddp gloo 1x2``."""
    return f"{series.name} {point.row.cell.topology}"


def scale_devices(panel: Panel) -> tuple[list[int], bool]:
    """The numbers of devices that occur, and whether their axis is linear."""
    devices = sorted({point.row.devices for point in panel.points})
    return devices, devices[-1] <= _LINEAR_UP_TO


def place_series(panel: Panel) -> Callable[[Series, Summary], float]:
    """Where a cell of a series stands on the axis of devices.

    Series stand beside each other in a fixed order. All that is drawn of a cell, its
    mean, its interval and its launches, has the same place.
    """
    _, linear = scale_devices(panel)
    middle = (len(panel.series) - 1) / 2
    shifts = {
        series.name: _APART * (place - middle)
        for place, series in enumerate(panel.series)
    }

    def place(series: Series, point: Summary) -> float:
        count, shift = point.row.devices, shifts[series.name]
        return count + shift if linear else count * 2.0**shift

    return place


def join_points(
    axes: Axes,
    series: Series,
    place: Callable[[Series, Summary], float],
    name: str,
    color: Any,
) -> None:
    """Lines between three points or more: two of them would suggest a trend."""
    for line in series.lines:
        known = [point for point in line if name in point.numbers]
        if len(known) > 2:
            x = [place(series, point) for point in known]
            y = [point.numbers[name].value for point in known]
            axes.plot(x, y, color=color, lw=1.1, zorder=1)


def write_title(axes: Axes, title: str) -> None:
    """Write a title in one line or two; a workload may have long arguments."""
    lines = textwrap.fill(title, _TITLE_WIDTH, max_lines=2, placeholder=" ...")
    axes.set_title(lines, parse_math=False)


def finish_devices(axes: Axes, panel: Panel) -> None:
    """Title, and the axis of devices."""
    devices, linear = scale_devices(panel)
    write_title(axes, panel.title)
    if linear:
        axes.set_xlim(devices[0] - 0.5, devices[-1] + 0.5)
    else:
        axes.set_xscale("log", base=2)
        axes.set_xlim(devices[0] / 2**0.5, devices[-1] * 2**0.5)
    axes.set_xticks(devices, [str(count) for count in devices])
    axes.minorticks_off()
    axes.grid(visible=False, axis="x")
    sns.despine(ax=axes)


def scale_by_logarithm(axes: Axes) -> None:
    """A logarithmic vertical axis with numbers that people read."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def draw_rows(
    panels: Sequence[Panel],
    draw_row: Callable[[Axes, Summary, int], None],
    *,
    width: float,
    row: float,
    label: str,
    values: Callable[[Summary], Sequence[float]] | None = None,
    limit: Callable[[Sequence[float]], float] = max,
) -> Figure:
    """A line of its own for each cell, by name.

    Args:
        panels: at least one.
        draw_row: draws a cell at a place of the vertical axis.
        width: of the figure, in inches.
        row: the height of a line, in inches.
        label: of the horizontal axis.
        values: of a cell, those beyond the end of the axis are counted there. By
            default all of them fit.
        limit: values of a cell -> where the axis may end. It ends at the largest.
    """
    heights = [row * len(panel.points) + 0.75 for panel in panels]
    figure, grid = make_figure(heights, width=width)
    for axes, panel in zip(grid, panels, strict=True):
        names: list[str] = []
        for series in panel.series:
            for point in series.points:
                draw_row(axes, point, len(names))
                note = " (oversubscribed)" if is_shared(point) else ""
                names.append(f"{name_point(series, point)}{note}")
        axes.margins(x=0.08)
        axes.set_xlim(left=0)
        if values:
            every = [values(point) for point in panel.points]
            end = max(map(limit, every))
            axes.set_xlim(right=end)
            for place, some in enumerate(every):
                _mark_beyond(axes, place, [value for value in some if value > end])
        finish_rows(axes, panel, names)
    grid[-1].set_xlabel(label)
    return figure


def finish_rows(axes: Axes, panel: Panel, names: Sequence[str]) -> None:
    """Title, and a name for each line."""
    write_title(axes, panel.title)
    axes.set_yticks(range(len(names)), names, parse_math=False)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    sns.despine(ax=axes, left=True)


def _mark_beyond(axes: Axes, place: float, beyond: Sequence[float]) -> None:
    """Say at the edge how many values lie beyond the axis, and how far the largest."""
    if beyond:
        axes.annotate(
            f"{len(beyond)} up to {max(beyond):.4g} \u25b6",
            (1, place),
            (-2, 6),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            ha="right",
            va="center",
            size=6.5,
            color="0.35",
        )


def make_handle(
    label: str, marker: str, *, color: Any = "0.4", ms: float = 5, **style: Any
) -> Line2D:
    """An entry of a legend: a marker."""
    return Line2D(
        [], [], ls="", marker=marker, ms=ms, color=color, label=label, **style
    )


def launch_handles(panels: Sequence[Panel]) -> list[Line2D]:
    """Entries of a legend: launches, their interval, and hollow markers if any."""
    interval = "95 % interval of the mean"
    handles = [
        make_handle("each launch", "o", ms=2.6),
        Line2D([], [], lw=4, alpha=0.3, color="0.4", label=interval),
    ]
    if any(is_shared(point) for panel in panels for point in panel.points):
        handles.append(make_handle("oversubscribed", "o", mfc="white"))
    return handles
