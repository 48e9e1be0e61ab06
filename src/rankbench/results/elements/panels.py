"""Plots with a panel for each group of cells that may be compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import pandas as pd

from rankbench.results.elements import plotting
from rankbench.results.elements.plotting import Ends, Styles
from rankbench.results.elements.section import (
    Columns,
    Content,
    Drawing,
    Row,
    Section,
    make_frame,
)
from rankbench.results.numbers.series import Panel, cut
from rankbench.results.numbers.summary import Summary

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from rankbench.results.numbers.result_set import ResultSet

# With more cells, not each has a name of its own.
NAMED = 12

# A plot with more cells could not be read, and its bitmap would not fit into memory.
MOST_PANELS, _MOST_CELLS = 6, 60


def fit_labels(count: int) -> float:
    """Inches of a panel with so many names on its right."""
    return max(2.5, 0.16 * count + 0.4)


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelPlot:
    """A plot of all cells, with a panel for each group that may be compared.

    Attributes:
        name, question, caption: as of `Drawing`.
        columns: of its data, after panel, series and cell.
        rows: of a cell.
        says: whether a panel says anything. The others are not drawn.
        height: of a panel in inches.
        draw: draws a panel, given the style of each series by its name. It returns what
            the names on the right belong to, if they are to be written there.
        lines: label in the legend -> style of a grey line.
        legend: other entries of the legend.
        explains: which marks the legend explains: `launches` and their intervals, the
            intervals of `means` alone, or ``""`` for none.
        beside: axes of a panel, beside each other.
        always: whether it is there, with a sentence, even if no cell is ok.
    """

    name: str
    question: str
    caption: str
    columns: Columns
    rows: Callable[[Summary], Iterable[Row]]
    draw: Callable[[Sequence[Axes], Panel, Styles], Ends | None]
    says: Callable[[Panel], bool] = lambda _: True
    height: Callable[[Panel], float] = lambda panel: fit_labels(len(panel.series))
    lines: Mapping[str, str] = field(default_factory=dict)
    legend: Callable[[Sequence[Panel]], Sequence[Artist]] = lambda _: ()
    explains: str = "means"
    beside: int = 1
    always: bool = False


def draw_panels(found: ResultSet, plots: Iterable[PanelPlot]) -> Iterator[Drawing]:
    """The plots that say something about these results."""
    for plot in plots:
        panels = [panel for panel in found.panels if plot.says(panel)]
        if panels or plot.always:
            nothing = partial(_draw_nothing, found)
            yield Drawing(
                name=plot.name,
                question=plot.question,
                caption=plot.caption,
                frame=partial(_frame, plot, panels),
                draw=partial(_draw, plot, panels, found.panels) if panels else nothing,
            )


def make_plot_section(
    name: str, title: str, order: int, plots: Sequence[PanelPlot]
) -> Section:
    """A section of plots alone; of those that say something about the results."""

    def make(found: ResultSet) -> Content | None:
        drawings = list(draw_panels(found, plots))
        return Content(drawings=drawings) if drawings else None

    return Section(
        name=name,
        title=title,
        reading=plots[0].caption,
        order=order,
        make=make,
        plots=[plot.name for plot in plots],
    )


def _frame(plot: PanelPlot, panels: Sequence[Panel]) -> pd.DataFrame:
    rows = [
        {"panel": panel.title, "series": series.name, "cell": point.id, **row}
        for panel in panels
        for series in panel.series
        for point in series.points
        for row in plot.rows(point)
    ]
    columns = {**dict.fromkeys(("panel", "series", "cell"), str), **plot.columns}
    return make_frame(columns, rows)


def _draw(
    plot: PanelPlot, panels: Sequence[Panel], known: Sequence[Panel], width: float
) -> Figure:
    shown = cut(panels, panels_at_most=MOST_PANELS, cells=_MOST_CELLS)
    styles = plotting.choose_styles(shown, known)
    figure, grid = plotting.make_figure(
        list(map(plot.height, shown)),
        width=width,
        question=plot.question,
        columns=plot.beside,
    )
    for row, panel in zip(grid, shown, strict=True):
        plotting.write_title(row[0], panel.title)
        if ends := plot.draw(row, panel, styles):
            plotting.label_ends(row[-1], ends, plot.height(panel))
    lines = [plotting.make_line(name, ls=ls) for name, ls in plot.lines.items()]
    marks = plotting.explain_marks(shown, plot.explains) if plot.explains else []
    drawn, there = (sum(len(p.points) for p in some) for some in (shown, panels))
    said = f"the first {drawn} of {there} cells; {plot.name}.csv has all"
    handles = [*plot.legend(shown), *lines, *marks]
    plotting.add_legend(figure, handles, said if drawn < there else "")
    return figure


def _draw_nothing(found: ResultSet, width: float) -> Figure:
    """A sentence in the place of a plot: no cell is ok."""
    from matplotlib.figure import Figure

    counts = Counter(summary.status for summary in found.rows)
    listed = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    name = found.experiment
    text = f"No cell of {name} is ok, so there is nothing to plot."
    figure = Figure(figsize=(width, 1.2))
    figure.text(0.5, 0.6, text, ha="center", va="center", size=11, parse_math=False)
    figure.text(0.5, 0.3, listed or "the plan has no cells", ha="center", va="center")
    return figure
