"""The contract of a section: what a file in `results/sections` declares and makes.

A section is a frame, a sentence that says how to read it, and plots. Most plots have a
panel for each group of cells that may be compared (`PanelPlot`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from numbers import Number
from types import UnionType
from typing import TYPE_CHECKING, Any

import pandas as pd

from rankbench.results.elements import plotting
from rankbench.results.elements.plotting import Ends, Styles
from rankbench.results.elements.text import Grid, Note, Text, figures, show_estimate
from rankbench.results.numbers.series import Panel, cut
from rankbench.results.numbers.statistics import Estimate

if TYPE_CHECKING:
    from rankbench.results.numbers.result_set import ResultSet, Summary


# With more cells, not each has a name of its own.
NAMED = 12

# A plot with more cells could not be read, and its bitmap would not fit into memory.
MOST_PANELS, _MOST_CELLS = 6, 60

# Type of a column -> type of its values in a data frame. An `Estimate` is three columns
# of numbers: NAME, NAME_lo and NAME_hi; in a column of float, its value alone.
_TYPES: dict[Any, str] = {
    str: "object",
    int: "Int64",
    float: "float64",
    Estimate: "float64",
}
_TYPES |= {kind | None: name for kind, name in _TYPES.items()}

# A column that holds nothing else says nothing to readers.
_NOTHING = (None, "", Estimate(0.0), Estimate(0.0, 0.0, 0.0))

Row = Mapping[str, Any]

Type = type | UnionType

# Name of a column -> its type, and the heading under which documents show it, if any.
Columns = Mapping[str, Type | tuple[Type, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """One plot of a section. Nothing is drawn before it is asked for.

    Attributes:
        name: the plot is `plots/NAME.svg` and `.png`; its section has the data.
        question: that it answers; its title.
        caption: how to read it.
        make: width in inches -> the figure, without its title.
    """

    name: str
    question: str
    caption: str
    make: Callable[[float], plotting.Figure]

    def draw(self, width: float) -> plotting.Figure:
        """The figure, so many inches wide."""
        figure = self.make(width)
        figure.suptitle(self.question, x=0.01, ha="left", size=11, weight="bold")
        return figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What a section has to show for one experiment.

    Attributes:
        rows: of its CSV: name of a column -> value; a missing value stays empty. Or the
            frame itself, with grids.
        grids: the tables; by default one, by `Section.shown`.
        before: notes above the tables.
        notes: notes below the tables.
        drawings: the plots.
        facts: JSON values of NAME.json, for programs; None for no such file.
    """

    rows: Sequence[Row] | pd.DataFrame = ()
    grids: Sequence[Grid] | None = None
    before: Sequence[Note] = ()
    notes: Sequence[Note] = ()
    drawings: Sequence[Drawing] = ()
    facts: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Tables and plots that answer one question.

    Attributes:
        title: the heading.
        reading: how to read it, in a sentence or a few: by default what the docstring
            of `make` says.
        order: sections with a smaller number come first; those below 0 come before the
            table.
        make: what was read of a result directory -> content; None if there is nothing
            to show.
        columns: the columns of NAME.csv and their types: str, int, float or Estimate; a
            column of `str | None` is there only if a row has a value in it. Documents
            show those that have a heading, unless the section makes its own grids.
        name: that of its file; its numbers are in sections/NAME.csv.
    """

    title: str
    order: int
    make: Callable[[ResultSet], Content | None]
    reading: str | None = None
    columns: Columns = field(default_factory=dict)
    name: str = ""

    def grids(self, content: Content) -> Sequence[Grid]:
        """The tables for readers; none if the section has only plots."""
        if content.grids is not None or isinstance(content.rows, pd.DataFrame):
            return content.grids or ()
        shown = {
            name: column[1]
            for name, column in self.columns.items()
            if isinstance(column, tuple)
        }
        rows = [{shown[name]: row.get(name) for name in shown} for row in content.rows]
        grid = make_grid(self.title, rows)
        return [grid] if grid.columns else []

    def frame(self, content: Content) -> pd.DataFrame:
        """The columns of NAME.csv."""
        if isinstance(content.rows, pd.DataFrame):
            return content.rows
        columns = {
            name: column
            for name, column in self.columns.items()
            if not isinstance(_type_of(column), UnionType)
            or any(row.get(name) is not None for row in content.rows)
        }
        return make_frame(columns, content.rows)


def read_docstring(function: Callable[..., Any]) -> str:
    """The first paragraph of a docstring, in one line."""
    return " ".join((function.__doc__ or "").partition("\n\n")[0].split())


def make_grid(title: str, rows: Sequence[Row]) -> Grid:
    """A table of rows: heading -> value; columns without any value are left out."""
    used = {
        name: any(isinstance(row.get(name), Number | Estimate) for row in rows)
        for name in dict.fromkeys(name for row in rows for name in row)
        if any(row.get(name) not in _NOTHING for row in rows)
    }
    return Grid(title, used, [[show_value(row.get(n)) for n in used] for row in rows])


def make_frame(columns: Columns, rows: Sequence[Row]) -> pd.DataFrame:
    """A data frame with these columns.

    Args:
        columns: as of `Section`.
        rows: name -> value; the names are those of the columns.

    Raises:
        ValueError: a row has a value that no column takes.
    """
    unknown = {
        name for row in rows for name, value in row.items() if value is not None
    } - columns.keys()
    if unknown:
        raise ValueError(f"rows have undeclared columns: {', '.join(sorted(unknown))}")
    frame = {}
    for name, column in columns.items():
        kind = _type_of(column)
        values = [row.get(name) for row in rows]
        ends = {name: [getattr(value, "value", value) for value in values]}
        if kind in (Estimate, Estimate | None):
            for one, end in zip(_ends(name)[1:], ("low", "high"), strict=True):
                ends[one] = [getattr(value, end, None) for value in values]
        for one, own in ends.items():
            frame[one] = pd.Series(own, dtype=_TYPES[kind])
    return pd.DataFrame(frame)


def _type_of(column: Type | tuple[Type, str]) -> Type:
    return column[0] if isinstance(column, tuple) else column


def spell_ends(name: str, number: Estimate | None) -> dict[str, float | None]:
    """A number and the ends of its bracket, under its name."""
    ends = (number.value, number.low, number.high) if number else (None,) * 3
    return dict(zip(_ends(name), ends, strict=True))


def _ends(name: str) -> tuple[str, str, str]:
    return name, f"{name}_lo", f"{name}_hi"


def show_value(value: object) -> Text:
    """A value of a row as a field of a table; nothing for None and NaN."""
    match value:
        case Estimate() | None:
            return show_estimate(value)
        case float():
            return Text("" if value != value else figures(value))
    return value if isinstance(value, Text) else Text(str(value))


# --- plots with panels ----------------------------------------------------------------


def fit_labels(count: int) -> float:
    """Inches of a panel with so many names on its right."""
    return max(2.5, 0.16 * count + 0.4)


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelPlot:
    """A plot of all cells, with a panel for each group that may be compared.

    Attributes:
        name, question: as of `Drawing`.
        says: whether a panel says anything. The others are not drawn.
        height: of a panel in inches.
        draw: draws a panel, given the style of each series by its name. It returns what
            the names on the right belong to, if they are to be written there.
        lines: label in the legend -> style of a grey line.
        legend: other entries of the legend.
        explains: which marks the legend explains: as `explain_marks`, or ``""`` for
            none.
        beside: axes of a panel, beside each other.
        always: whether it is there, with a sentence, even if no cell is ok.
        caption: as of `Drawing`; by default what the docstring of `draw` says.
    """

    name: str
    question: str
    draw: Callable[[Sequence[plotting.Axes], Panel, Styles], Ends | None]
    says: Callable[[Panel], bool] = lambda _: True
    height: Callable[[Panel], float] = lambda panel: fit_labels(len(panel.series))
    lines: Mapping[str, str] = field(default_factory=dict)
    legend: Callable[[Sequence[Panel]], Sequence[plotting.Artist]] = lambda _: ()
    explains: str = "means"
    beside: int = 1
    always: bool = False
    caption: str = ""

    @property
    def reading(self) -> str:
        """How to read it."""
        return self.caption or read_docstring(self.draw)


def draw_panels(found: ResultSet, plots: Iterable[PanelPlot]) -> Iterator[Drawing]:
    """The plots that say something about these results."""
    for plot in plots:
        panels = [panel for panel in found.panels if plot.says(panel)]
        if panels or plot.always:
            nothing = partial(_draw_nothing, found)
            yield Drawing(
                name=plot.name,
                question=plot.question,
                caption=plot.reading,
                make=partial(_draw, plot, panels, found.panels) if panels else nothing,
            )


def make_plot_section(
    title: str,
    order: int,
    plots: Sequence[PanelPlot],
    *,
    columns: Columns,
    rows: Callable[[Summary], Iterable[Row]],
) -> Section:
    """A section of plots alone; of those that say something about the results.

    Args:
        columns: of its CSV, after the cell.
        rows: of a cell.
    """

    def make(found: ResultSet) -> Content | None:
        every = [
            {"cell": point.id, **row}
            for panel in found.panels
            for point in panel.points
            for row in rows(point)
        ]
        drawings = list(draw_panels(found, plots))
        # Not the rows: of ten thousand launches, they take a hundred MB.
        frame = make_frame(section.columns, every)
        return Content(rows=frame, drawings=drawings) if drawings else None

    section = Section(
        title=title,
        reading=plots[0].reading,
        order=order,
        make=make,
        columns={"cell": str, **columns},
    )
    return section


def _draw(
    plot: PanelPlot, panels: Sequence[Panel], known: Sequence[Panel], width: float
) -> plotting.Figure:
    shown = cut(panels, panels_at_most=MOST_PANELS, cells=_MOST_CELLS)
    styles = plotting.choose_styles(shown, known)
    figure, grid = plotting.make_figure(
        list(map(plot.height, shown)), width=width, columns=plot.beside
    )
    for row, panel in zip(grid, shown, strict=True):
        plotting.write_title(row[0], panel.title)
        if ends := plot.draw(row, panel, styles):
            plotting.label_ends(row[-1], ends, plot.height(panel))
    lines = [plotting.make_line(name, ls=ls) for name, ls in plot.lines.items()]
    marks = plotting.explain_marks(shown, plot.explains) if plot.explains else []
    drawn, there = (sum(len(p.points) for p in some) for some in (shown, panels))
    said = f"the first {drawn} of {there} cells; table.csv has all"
    handles = [*plot.legend(shown), *lines, *marks]
    plotting.add_legend(figure, handles, said if drawn < there else "")
    return figure


def _draw_nothing(found: ResultSet, width: float) -> plotting.Figure:
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
