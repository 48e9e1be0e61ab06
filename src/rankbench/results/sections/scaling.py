"""The plot of throughput against devices."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter

from rankbench.results.elements.panels import (
    add_legend,
    choose_markers,
    color_series,
    fill_of,
    finish_devices,
    make_figure,
    scale_devices,
)
from rankbench.results.elements.text import describe_base
from rankbench.results.numbers.series import Panel, count_hosts, is_shared
from rankbench.results.numbers.summary import Summary

COLUMNS = (
    *("panel", "series", "cell", "hosts", "devices", "launch"),
    *("throughput", "throughput_lo", "throughput_hi", "ideal"),
)

_HEIGHT = 3.6

# Shares of an axis: between two columns of launches, and between points that touch.
_COLUMN = 0.011
_TOUCHING = 0.02


def draw_scaling(panels: Sequence[Panel], *, width: float) -> Figure:
    """Throughput against devices: every launch, medians with intervals, the ideal.

    Args:
        panels: at least one.
        width: of the figure, in inches.
    """
    figure, grid = make_figure([_HEIGHT] * len(panels), width=width)
    points = [point for panel in panels for point in panel.points]
    colors = color_series(panels)
    hosts = sorted({count_hosts(point.row.cell) for point in points})
    markers = choose_markers(hosts)
    for axes, panel in zip(grid, panels, strict=True):
        _draw_panel(axes, panel, colors, markers)
    grid[-1].set_xlabel("devices")
    handles = [
        Line2D([], [], color=colors[n], marker="o", ms=5, label=n) for n in colors
    ]
    shape = partial(Line2D, [], [], color="0.4", linestyle="")
    if len(hosts) > 1:
        handles += [
            shape(marker=markers[n], ms=5, label="1 host" if n == 1 else f"{n} hosts")
            for n in hosts
        ]
    if any(is_shared(point) for point in points):
        handles.append(shape(marker="o", ms=5, mfc="white", label="oversubscribed"))
    handles.append(shape(marker="o", ms=2.2, label="each launch"))
    band = partial(Line2D, [], [], color="0.4", linewidth=4, solid_capstyle="butt")
    handles.append(band(alpha=0.3, label="95% interval"))
    add_legend(figure, handles)
    return figure


def make_frame(panels: Sequence[Panel]) -> pd.DataFrame:
    """The data of the plot: for each cell its median, and a row for each launch."""
    rows: list[dict[str, Any]] = []
    for panel in panels:
        for series in panel.series:
            for point in series.points:
                base, median = point.speedup_base, point.numbers["throughput"]
                same = {
                    "panel": panel.title,
                    "series": series.name,
                    "cell": point.row.id,
                    "hosts": count_hosts(point.row.cell),
                    "devices": point.row.devices,
                }
                ends = {"throughput_lo": median.low, "throughput_hi": median.high}
                ideal = base and point.row.devices * base.throughput.value
                rows.append(
                    {**same, "throughput": median.value, **ends, "ideal": ideal}
                )
                rows += [
                    {**same, "launch": launch.number, "throughput": one.throughput}
                    for launch, one in zip(
                        point.row.launches, point.measures, strict=True
                    )
                ]
    types = {"launch": "Int64"} | dict.fromkeys(COLUMNS[6:], "float64")
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(types)


def _draw_panel(
    axes: Axes, panel: Panel, colors: dict[str, Any], markers: dict[int, str]
) -> None:
    devices, linear = scale_devices(panel)
    width = _COLUMN * (devices[-1] if linear else np.log2(devices[-1]) + 1)
    for series in panel.series:
        for line in series.lines:
            x = [point.row.devices for point in line]
            y = [point.numbers["throughput"].value for point in line]
            axes.plot(x, y, color=colors[series.name], lw=1.1, zorder=2)
    columns = _find_columns(panel.points, linear=linear)
    for series in panel.series:
        for point in series.points:
            count, column = point.row.devices, columns[point.row.id]
            shift = (column + 1) * width
            x_launches = count + shift if linear else count * 2**shift
            color, marker = colors[series.name], markers[count_hosts(point.row.cell)]
            # Of medians that lie on each other, each shows around the next.
            size = max(2.0, 5.6 - 1.8 * column)
            _draw_median(axes, point, color=color, marker=marker, size=size)
            _draw_launches(axes, point, x_launches, color=color)
    for base in panel.bases:
        ideal = [count * base.throughput.value for count in devices]
        label = f"ideal: devices x {describe_base(base)}"
        axes.plot(devices, ideal, "--", color="0.5", lw=1, zorder=1, label=label)
    if panel.bases:
        axes.legend(loc="upper left")
    finish_devices(axes, panel)
    axes.set_ylabel("samples/s")
    if linear:
        axes.set_xlim(0.5, devices[-1] + 0.5)
        axes.set_ylim(bottom=0)
    else:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())


def _find_columns(points: Sequence[Summary], *, linear: bool) -> dict[str, int]:
    """The column of each cell's launches: the first where they touch no others."""
    ends = {}
    for point in points:
        values = [launch.throughput for launch in point.measures]
        low, high = min(values), max(values)
        ends[point.row.id] = (low, high) if linear else (np.log2(low), np.log2(high))
    top = max(high for _, high in ends.values())
    bottom = 0 if linear else min(low for low, _ in ends.values())
    touch = _TOUCHING * (top - bottom)
    columns: dict[str, int] = {}
    for point in points:
        low, high = ends[point.row.id]
        taken = {
            columns[other.row.id]
            for other in points
            if other.row.id in columns
            and other.row.devices == point.row.devices
            and ends[other.row.id][0] < high + touch
            and ends[other.row.id][1] > low - touch
        }
        columns[point.row.id] = min(set(range(len(points))) - taken)
    return columns


def _draw_median(
    axes: Axes, point: Summary, *, color: Any, marker: str, size: float
) -> None:
    """The median, at the true number of devices."""
    value = point.numbers["throughput"].value
    fill = fill_of(point, color)
    axes.plot(point.row.devices, value, marker, ms=size, mfc=fill, mec=color, zorder=3)


def _draw_launches(axes: Axes, point: Summary, x: float, *, color: Any) -> None:
    """Every launch and the interval of their median, in a column beside the medians."""
    values = [launch.throughput for launch in point.measures]
    number = point.numbers["throughput"]
    if number.low is not None and number.high is not None:
        axes.vlines(x, number.low, number.high, color=color, lw=4, alpha=0.3)
    fill = fill_of(point, color)
    axes.plot([x] * len(values), values, "o", ms=2.2, mew=0.4, mfc=fill, mec=color)
