"""Parallel efficiency against devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rankbench.results.elements.panels import make_plot_section
from rankbench.results.numbers.series import Panel
from rankbench.results.numbers.statistics import Estimate
from rankbench.results.numbers.summary import Summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HEIGHT = 3.0


def _rows(point: Summary) -> Iterator[dict[str, Any]]:
    """A row if the cell has an efficiency."""
    if number := point.numbers.get("efficiency"):
        yield {"devices": point.row.devices, "efficiency": number}


def _draw(panels: Sequence[Panel], width: float) -> Figure:
    from rankbench.results.elements import plotting

    figure, grid = plotting.make_figure([_HEIGHT] * len(panels), width=width)
    colors = plotting.color_series(panels)
    markers = plotting.choose_markers(list(colors))
    for axes, panel in zip(grid, panels, strict=True):
        place = plotting.place_series(panel)
        for series in panel.series:
            color, marker = colors[series.name], markers[series.name]
            plotting.join_points(axes, series, place, "efficiency", color)
            for point in series.points:
                if number := point.numbers.get("efficiency"):
                    x = place(series, point)
                    plotting.draw_launches(
                        axes, x, [], number, point, color, marker=marker
                    )
        axes.axhline(1, color="0.5", ls="--", lw=1, zorder=1)
        axes.set_ylabel("efficiency")
        axes.set_ylim(0, max(1.08, axes.get_ylim()[1]))
        plotting.finish_devices(axes, panel)
    grid[-1].set_xlabel("devices")
    handles = [plotting.make_handle(n, markers[n], color=colors[n]) for n in colors]
    ideal = plotting.Line2D([], [], color="0.5", ls="--", lw=1, label="ideal")
    intervals = plotting.launch_handles(panels)[1:]
    plotting.add_legend(figure, [*handles, ideal, *intervals])
    return figure


SECTION = make_plot_section(
    name="efficiency",
    title="Efficiency against devices",
    reading=(
        "Means and 95 % intervals; 1 is the ideal. Series with equally many devices "
        "stand beside each other."
    ),
    order=3,
    columns={"devices": int, "efficiency": Estimate},
    rows=_rows,
    draw=_draw,
    # Version 2: all efficiencies of a workload have the same base.
)
