"""Throughput against devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rankbench.results.elements.panels import make_plot_section
from rankbench.results.elements.text import figures
from rankbench.results.numbers.series import Panel, count_hosts
from rankbench.results.numbers.statistics import Estimate
from rankbench.results.numbers.summary import Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HEIGHT = 3.6


def _rows(point: Summary) -> Iterator[dict[str, Any]]:
    """The mean of a cell, and a row for each launch."""
    base, devices = point.speedup_base, point.row.devices
    same = {"hosts": count_hosts(point.row.cell), "devices": devices}
    ideal = base and devices * base.throughput.value
    yield {**same, "throughput": point.numbers["throughput"], "ideal": ideal}
    for launch, one in zip(point.row.launches, point.measures, strict=True):
        yield {**same, "launch": launch.number, "throughput": one.throughput}


def _draw(panels: Sequence[Panel], width: float) -> Figure:
    """Every launch, means with intervals, and the ideal."""
    from rankbench.results.elements import plotting

    figure, grid = plotting.make_figure([_HEIGHT] * len(panels), width=width)
    points = [point for panel in panels for point in panel.points]
    colors = plotting.color_series(panels)
    hosts = sorted({count_hosts(point.row.cell) for point in points})
    markers = plotting.choose_markers(hosts)
    for axes, panel in zip(grid, panels, strict=True):
        _draw_panel(axes, panel, colors, markers)
    grid[-1].set_xlabel("devices")
    handles = [plotting.make_handle(n, "o", color=colors[n]) for n in colors]
    if len(hosts) > 1:
        handles += [
            plotting.make_handle("1 host" if n == 1 else f"{n} hosts", markers[n])
            for n in hosts
        ]
    plotting.add_legend(figure, [*handles, *plotting.launch_handles(panels)])
    return figure


def _draw_panel(
    axes: Axes, panel: Panel, colors: dict[str, Any], markers: dict[int, str]
) -> None:
    from rankbench.results.elements import plotting

    devices, linear = plotting.scale_devices(panel)
    place = plotting.place_series(panel)
    for base in panel.bases:
        ideal = [count * base.throughput.value for count in devices]
        name = " ".join(base.id.split(".")[:3])
        rate = f"{figures(base.throughput.value)} {base.unit}/s"
        label = f"ideal: devices x {rate} of {name}"
        axes.plot(devices, ideal, "--", color="0.5", lw=1, zorder=1, label=label)
    for series in panel.series:
        color = colors[series.name]
        plotting.join_points(axes, series, place, "throughput", color)
        for point in series.points:
            rates = [launch.throughput for launch in point.measures]
            number, marker = point.numbers["throughput"], count_hosts(point.row.cell)
            x = place(series, point)
            plotting.draw_launches(
                axes, x, rates, number, point, color, marker=markers[marker]
            )
    if panel.bases:
        axes.legend(loc="upper left", fontsize=7.5)
    plotting.finish_devices(axes, panel)
    axes.set_ylabel(f"{panel.unit}/s")
    if linear:
        axes.set_ylim(bottom=0)
    else:
        plotting.scale_by_logarithm(axes)


SECTION = make_plot_section(
    name="scaling",
    title="Throughput against devices",
    reading=(
        "Mean over launches (large), every launch (small) and the 95 % interval of "
        "the mean. Hollow: ranks share a core or a GPU. Dashed: the ideal. Series "
        "with equally many devices stand beside each other."
    ),
    order=2,
    columns={
        **dict.fromkeys(("hosts", "devices", "launch"), int),
        "throughput": Estimate,
        "ideal": float,
    },
    rows=_rows,
    draw=_draw,
)
