"""Plots with a panel for each group of cells that may be compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from rankbench.results.elements.section import (
    Content,
    Drawing,
    Section,
    make_frame,
)
from rankbench.results.numbers.series import Panel, Series, cut
from rankbench.results.numbers.summary import Summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rankbench.results.numbers.result_set import ResultSet

# A plot with more cells could not be read, and its bitmap would not fit into memory.
MOST_PANELS, _MOST_CELLS = 6, 60

Place = tuple[Panel, Series, Summary]


def make_plot_section(
    *,
    name: str,
    title: str,
    reading: str,
    order: int,
    columns: Mapping[str, type],
    rows: Callable[[Summary], Iterable[Mapping[str, Any]]],
    draw: Callable[[Sequence[Panel], float], Figure],
    sort: Callable[[Place], Any] | None = None,
) -> Section:
    """A section of one plot, which every experiment has, whatever was measured.

    Args:
        name, title, reading, order: as of `Section`.
        columns: of the data of the plot, after panel, series and cell.
        rows: cell -> its rows.
        draw: panels, at least one, and width in inches -> the figure.
        sort: key by which the cells are sorted; by default they keep their order.
    """
    every = {"panel": str, "series": str, "cell": str, **columns}

    def frame(panels: Sequence[Panel]) -> pd.DataFrame:
        places = each_point(panels)
        has_units = "throughput" in columns and counts_tokens(panels)
        found = [
            {"panel": panel.title, "series": series.name, "cell": point.row.id, **row}
            | ({"unit": f"{panel.unit}/s"} if has_units else {})
            for panel, series, point in (sorted(places, key=sort) if sort else places)
            for row in rows(point)
        ]
        return make_frame(every | ({"unit": str} if has_units else {}), found)

    def make(found: ResultSet) -> Content:
        return Content(drawings=[draw_panels(found, name, reading, frame, draw)])

    return Section(
        name=name,
        title=title,
        reading=reading,
        order=order,
        make=make,
        plots=(name,),
    )


def draw_panels(
    found: ResultSet,
    name: str,
    caption: str,
    frame: Callable[[Sequence[Panel]], pd.DataFrame],
    draw: Callable[[Sequence[Panel], float], Figure],
) -> Drawing:
    """A plot of all panels, or of the first ones; or a sentence if there are none."""

    def draw_some(width: float) -> Figure:
        if not found.panels:
            return _draw_nothing(found, width)
        panels = cut(found.panels, panels_at_most=MOST_PANELS, cells=_MOST_CELLS)
        figure = draw(panels, width)
        shown, there = (sum(len(p.points) for p in x) for x in (panels, found.panels))
        if shown < there:
            said = f"the first {shown} of {there} cells; {name}.csv has all"
            figure.suptitle(said, size=9)
        return figure

    return Drawing(
        name=name, caption=caption, frame=lambda: frame(found.panels), draw=draw_some
    )


def counts_tokens(panels: Iterable[Panel]) -> bool:
    """Whether a throughput is in tokens/s, so that data must name its unit."""
    return any(panel.unit == "tokens" for panel in panels)


def each_point(panels: Sequence[Panel]) -> Iterator[Place]:
    """Every cell, with the panel and the series that it belongs to."""
    for panel in panels:
        for series in panel.series:
            for point in series.points:
                yield panel, series, point


def _draw_nothing(found: ResultSet, width: float) -> Figure:
    from matplotlib.figure import Figure

    counts = Counter(summary.row.status for summary in found.summaries)
    listed = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    name = found.results.experiment
    text = f"No cell of {name} is ok, so there is nothing to plot."
    figure = Figure(figsize=(width, 1.2))
    figure.text(0.5, 0.6, text, ha="center", va="center", size=11, parse_math=False)
    figure.text(0.5, 0.3, listed or "the plan has no cells", ha="center", va="center")
    return figure
