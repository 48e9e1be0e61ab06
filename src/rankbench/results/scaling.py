"""The plot of throughput against devices."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter

from rankbench.results.series import Panel, count_hosts, is_shared
from rankbench.results.summary import Summary
from rankbench.results.text import describe_base

_HEIGHT = 3.6
# Above so many devices both axes are logarithmic.
_LINEAR_UP_TO = 8
_LEGEND_WIDTH = 100  # characters


def draw_scaling(panels: Sequence[Panel], *, width: float) -> Figure:
    """Throughput against devices: every launch, medians with intervals, the ideal.

    Args:
        panels: at least one.
        width: of the figure, in inches.
    """
    figure = Figure(figsize=(width, _HEIGHT * len(panels) + 0.5), layout="constrained")
    grid = figure.subplots(len(panels), squeeze=False)[:, 0]
    points = [point for panel in panels for point in panel.points]
    names = list(dict.fromkeys(s.name for panel in panels for s in panel.series))
    kind = "colorblind" if len(names) <= 10 else "husl"
    palette = sns.color_palette(kind, len(names))
    colors = dict(zip(names, palette, strict=True))
    hosts = sorted({count_hosts(point.row.cell) for point in points})
    markers = {count: "osD^vPX*"[i % 8] for i, count in enumerate(hosts)}
    for axes, panel in zip(grid, panels, strict=True):
        _draw_panel(axes, panel, colors, markers)
    grid[-1].set_xlabel("devices")
    handles = [
        Line2D([], [], color=colors[n], marker="o", ms=5, label=n) for n in names
    ]
    shape = partial(Line2D, [], [], color="0.4", linestyle="", markersize=5)
    if len(hosts) > 1:
        handles += [
            shape(marker=markers[n], label="1 host" if n == 1 else f"{n} hosts")
            for n in hosts
        ]
    if any(is_shared(point) for point in points):
        handles.append(shape(marker="o", mfc="white", label="oversubscribed"))
    longest = max(len(str(handle.get_label())) for handle in handles)
    columns = max(1, min(4, _LEGEND_WIDTH // (longest + 6)))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns)
    return figure


def _draw_panel(
    axes: Axes, panel: Panel, colors: dict[str, Any], markers: dict[int, str]
) -> None:
    devices = sorted({point.row.devices for point in panel.points})
    most = devices[-1]
    beside = _Beside(devices, len(panel.series))
    if not beside.linear:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    for index, series in enumerate(panel.series):
        color = colors[series.name]
        for line in series.lines:
            x = [point.row.devices for point in line]
            y = [point.numbers["throughput"].value for point in line]
            axes.plot(x, y, color=color, lw=1.2, zorder=2)
        for point in series.points:
            x_launches = beside.place(point.row.devices, index)
            marker = markers[count_hosts(point.row.cell)]
            _draw_point(axes, point, x_launches, color=color, marker=marker)
    if most > 1 and panel.bases:
        labels = [f"ideal: devices x {describe_base(base)}" for base in panel.bases]
        for base, label in zip(panel.bases, labels, strict=True):
            ideal = [base.throughput.value, most * base.throughput.value]
            axes.plot([1, most], ideal, "--", color="0.5", lw=1, zorder=1, label=label)
        axes.legend(loc="upper left")
    axes.set_title(panel.title, parse_math=False)
    axes.set_ylabel("samples/s")
    axes.set_xticks(devices, [str(count) for count in devices])
    axes.tick_params(axis="x", which="minor", bottom=False)
    axes.grid(visible=False, axis="x")
    if beside.linear:
        axes.set_ylim(bottom=0)
        axes.set_xlim(0.5, most + 0.5)
    sns.despine(ax=axes)


class _Beside:
    """Where launches stand: right of their median, each series in its own column."""

    def __init__(self, devices: Sequence[int], series: int) -> None:
        self.linear = devices[-1] <= _LINEAR_UP_TO
        at = [self._axis(count) for count in devices]
        gap = min(np.diff(at), default=1.0)
        self._step = min(0.02 * (at[-1] - at[0] + 1), 0.6 * gap / series)

    def place(self, devices: int, series: int) -> float:
        x = self._axis(devices) + (series + 1) * self._step
        return float(x if self.linear else 2**x)

    def _axis(self, devices: int) -> float:
        return devices if self.linear else float(np.log2(devices))


def _draw_point(
    axes: Axes, point: Summary, x_launches: float, *, color: Any, marker: str
) -> None:
    """A median with its interval at the true place, and the launches beside it."""
    fill = "white" if is_shared(point) else color
    devices, number = point.row.devices, point.numbers["throughput"]
    values = [launch.throughput for launch in point.measures]
    look = {"color": color, "mfc": fill, "marker": marker}
    x = [x_launches] * len(values)
    axes.plot(x, values, ms=2.4, mew=0.5, alpha=0.7, ls="", zorder=3, **look)
    if number.low is not None and number.high is not None:
        axes.vlines(devices, number.low, number.high, color=color, lw=1.5, zorder=3)
    if not is_shared(point):
        look["mec"] = "white"
    axes.plot(devices, number.value, ms=6, mew=0.7, zorder=4, **look)
