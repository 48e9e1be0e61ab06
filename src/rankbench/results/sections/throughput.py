"""Cells by throughput, the fastest first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rankbench.results.elements import plotting
from rankbench.results.elements.panels import PanelPlot, make_plot_section
from rankbench.results.elements.plotting import Styles
from rankbench.results.elements.text import show_estimate
from rankbench.results.numbers.series import Panel
from rankbench.results.numbers.statistics import Estimate
from rankbench.results.numbers.summary import Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ROW = 0.25  # inches


def _rows(point: Summary) -> Iterator[dict[str, Any]]:
    """The mean of a cell, and a row for each launch."""
    unit = f"{point.cell.unit}/s"
    yield {"unit": unit, "throughput": point.numbers["throughput"]}
    for one in point.measures:
        own = {"launch": one.launch.number, "throughput": one.throughput}
        yield {"unit": unit, **own}


def _label(point: Summary) -> str:
    """The throughput, and the bracket of its ratio: launches have no interval."""
    rate = str(show_estimate(point.numbers["throughput"]))
    ratio = point.numbers.get("speedup")
    return f"{rate}   x {show_estimate(ratio)}" if ratio and ratio.interval else rate


def _draw(grid: Sequence[Axes], panel: Panel, styles: Styles) -> None:
    (axes,) = grid
    rows = plotting.each_row(panel)
    rows.sort(key=lambda row: -row[1].numbers["throughput"].value)
    for place, (series, point) in enumerate(rows):
        number, style = point.numbers["throughput"], styles[series.name]
        rates = [launch.throughput for launch in point.measures]
        plotting.draw_launches(axes, rates, [place] * len(rates), style)
        mark = plotting.Mark(number, Estimate(place))
        plotting.draw_mark(axes, mark, point, style)
    each = [[launch.throughput for launch in point.measures] for _, point in rows]
    plotting.finish_rows(
        axes,
        [plotting.name_point(*row) for row in rows],
        [_label(point) for _, point in rows],
        # Launches that are no outliers have room.
        end=1.05 * max(r for own in each for r in own if r < 1.5 * np.mean(own)),
        beyond=each,
    )
    axes.set_xlabel(f"{panel.unit}/s")


_PLOT = PanelPlot(
    name="throughput",
    question="Which is the fastest?",
    caption=(
        "Cells by throughput, the fastest first: mean over launches (large) and every "
        "launch (small). Behind it the speedup with its bracket, which is within "
        "rounds: rows differ from the base if it excludes 1, however the launches lie."
    ),
    columns={"unit": str, "launch": int, "throughput": Estimate},
    rows=_rows,
    height=lambda panel: _ROW * len(panel.points) + 0.7,
    draw=_draw,
    explains="launches",
    always=True,
)

SECTION = make_plot_section("throughput", "Throughput", 1, [_PLOT])
