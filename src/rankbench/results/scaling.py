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
    slots = _Slots(devices, len(panel.series))
    for index, series in enumerate(panel.series):
        color = colors[series.name]
        for line in series.lines:
            x = [slots.place(point.row.devices, index + 0.25) for point in line]
            y = [point.numbers["throughput"].value for point in line]
            axes.plot(x, y, color=color, lw=1.1, zorder=2)
        for point in series.points:
            x_launches = slots.place(point.row.devices, index - 0.25)
            x_median = slots.place(point.row.devices, index + 0.25)
            marker = markers[count_hosts(point.row.cell)]
            _draw_launches(axes, point, x_launches, color=color, marker=marker)
            _draw_median(axes, point, x_median, color=color, marker=marker)
    for base in panel.bases:
        ends = [slots.ends(count) for count in devices]
        ideal = [[count * base.throughput.value] * 2 for count in devices]
        label = f"ideal: devices x {describe_base(base)}"
        axes.plot(
            np.ravel(ends),
            np.ravel(ideal),
            "--",
            color="0.5",
            lw=1,
            zorder=1,
            label=label,
        )
    if panel.bases:
        axes.legend(loc="upper left")
    axes.set_title(panel.title, parse_math=False)
    axes.set_ylabel("samples/s")
    axes.set_xticks([slots.axis(count) for count in devices], list(map(str, devices)))
    axes.grid(visible=False, axis="x")
    if slots.linear:
        axes.set_ylim(bottom=0)
    else:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    sns.despine(ax=axes)


class _Slots:
    """The x axis: around each number of devices a slot, in it a column for each series.

    Columns keep equal values from hiding each other. The ideal is flat within a slot:
    no column makes its series look better.
    """

    def __init__(self, devices: Sequence[int], series: int) -> None:
        self.linear = devices[-1] <= _LINEAR_UP_TO
        places = [self.axis(count) for count in devices]
        span = places[-1] - places[0] + 1
        self._column = min(0.04 * span, 0.6 * min(np.diff(places), default=1) / series)
        self._series = series

    def axis(self, devices: int) -> float:
        """The middle of a slot."""
        return float(devices if self.linear else np.log2(devices))

    def place(self, devices: int, series: float) -> float:
        """The middle of a column."""
        return self.axis(devices) + (series - (self._series - 1) / 2) * self._column

    def ends(self, devices: int) -> tuple[float, float]:
        """Left and right end of a slot."""
        return self.place(devices, -0.5), self.place(devices, self._series - 0.5)


def _draw_launches(
    axes: Axes, point: Summary, x: float, *, color: Any, marker: str
) -> None:
    values = [launch.throughput for launch in point.measures]
    axes.plot(
        [x] * len(values),
        values,
        marker=marker,
        linestyle="",
        markersize=2.2,
        color=color,
        markerfacecolor="white" if is_shared(point) else color,
        markeredgewidth=0.5,
        alpha=0.7,
        zorder=3,
    )


def _draw_median(
    axes: Axes, point: Summary, x: float, *, color: Any, marker: str
) -> None:
    number = point.numbers["throughput"]
    if number.low is not None and number.high is not None:
        axes.vlines(x, number.low, number.high, color=color, lw=1.4, zorder=3)
    axes.plot(
        x,
        number.value,
        marker=marker,
        markersize=4.5,
        color=color,
        markerfacecolor="white" if is_shared(point) else color,
        zorder=4,
    )
