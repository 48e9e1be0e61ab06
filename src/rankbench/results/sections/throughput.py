"""Cells by throughput, the fastest first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rankbench.results.elements.panels import Place, each_point, make_plot_section
from rankbench.results.elements.text import show_estimate
from rankbench.results.numbers.series import Panel
from rankbench.results.numbers.statistics import Estimate
from rankbench.results.numbers.summary import Summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ROW = 0.34  # inches


def _rows(point: Summary) -> Iterator[dict[str, Any]]:
    yield {"throughput": point.numbers["throughput"]}


def _order(place: Place) -> tuple[str, float]:
    panel, _, point = place
    return panel.title, -point.numbers["throughput"].value


def _draw(panels: Sequence[Panel], width: float) -> Figure:
    from rankbench.results.elements import plotting

    heights = [_ROW * len(panel.points) + 0.75 for panel in panels]
    figure, grid = plotting.make_figure(heights, width=width)
    colors = plotting.color_series(panels)
    is_mixed = len({panel.unit for panel in panels}) > 1
    for axes, panel in zip(grid, panels, strict=True):
        ordered = sorted(each_point([panel]), key=_order)
        for place, (_, series, point) in enumerate(ordered):
            color, rates = colors[series.name], [m.throughput for m in point.measures]
            number = point.numbers["throughput"]
            plotting.draw_launches(
                axes, place, rates, number, point, color, horizontal=True
            )
            axes.annotate(
                f"{plotting.name_point(series, point)}  {show_estimate(number)}",
                (max(rates), place),
                (8, 0),
                textcoords="offset points",
                va="center",
                size=7.5,
                parse_math=False,
            )
        # The labels need room on the right.
        largest = max(m.throughput for _, _, p in ordered for m in p.measures)
        axes.set_xlim(0, 1.75 * largest)
        plotting.finish_rows(axes, panel, [""] * len(ordered))
        axes.set_yticks([])
        axes.set_xlabel(f"{panel.unit}/s" if panel is panels[-1] or is_mixed else "")
    plotting.add_legend(figure, plotting.launch_handles(panels))
    return figure


SECTION = make_plot_section(
    name="throughput",
    title="Throughput",
    reading=(
        "Cells by throughput, the fastest first: mean over launches (large), every "
        "launch (small) and the 95 % interval of the mean. Cells of one panel may be "
        "compared. Rows whose intervals overlap widely may be equally fast."
    ),
    order=1,
    columns={"throughput": Estimate},
    rows=_rows,
    draw=_draw,
    sort=_order,
)
