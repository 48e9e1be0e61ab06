"""The contract of a section: what a file in `results/sections` declares and makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pandas as pd

from rankbench.results.elements.text import Grid, Note, Text, figures, show_estimate
from rankbench.results.numbers.statistics import Estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rankbench.results.numbers.result_set import ResultSet

# Type of a column -> type of its values in a data frame. An `Estimate` is three columns
# of numbers: NAME, NAME_lo and NAME_hi.
_TYPES = {str: "object", int: "Int64", float: "float64", Estimate: "float64"}

Row = Mapping[str, Any]

# Name of a column -> its type, and the heading under which documents show it, if any.
Columns = Mapping[str, type | tuple[type, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """One plot of a section. Nothing is drawn before it is asked for.

    Attributes:
        name: the plot is `plots/NAME.svg` and `.png`; its data are `plots/NAME.csv`.
        question: that it answers; its title.
        caption: how to read it.
        draw: width in inches -> the figure.
        frame: gives the data; a page about several runs has none.
    """

    name: str
    question: str
    caption: str
    draw: Callable[[float], Figure]
    frame: Callable[[], pd.DataFrame] = pd.DataFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What a section has to show for one experiment.

    Attributes:
        rows: of its CSV: name of a column -> value; a missing value stays empty.
        grids: the tables; by default one, by `Section.shown`.
        before: notes above the tables.
        notes: notes below the tables.
        drawings: the plots.
        facts: JSON values of NAME.json, for programs; None for no such file.
    """

    rows: Sequence[Row] = ()
    grids: Sequence[Grid] | None = None
    before: Sequence[Note] = ()
    notes: Sequence[Note] = ()
    drawings: Sequence[Drawing] = ()
    facts: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Tables and plots that answer one question.

    Attributes:
        name: its numbers are in sections/NAME.csv.
        title: the heading.
        reading: how to read it, in a sentence or a few.
        order: sections with a smaller number come first; those below 0 come before the
            table.
        make: what was read of a result directory -> content; None if there is nothing
            to show.
        columns: the columns of NAME.csv and their types: str, int, float or Estimate.
            Documents show those that have a heading, unless the section makes its own
            grids.
        optional: columns that NAME.csv has only if a row has a value there.
        plots: names of its plots. NAME-of-a-cell belongs to NAME.
    """

    name: str
    title: str
    reading: str
    order: int
    make: Callable[[ResultSet], Content | None]
    columns: Columns = field(default_factory=dict)
    optional: Sequence[str] = ()
    plots: Sequence[str] = ()

    def grids(self, content: Content) -> Sequence[Grid]:
        """The tables for readers; none if the section has only plots."""
        if content.grids is not None:
            return content.grids
        shown = {
            name: column
            for name, column in self.columns.items()
            if isinstance(column, tuple)
            # A column without any value says nothing to readers.
            and any(row.get(name) is not None for row in content.rows)
        }
        if not content.rows or not shown:
            return []
        numbers = {column[1]: column[0] is not str for column in shown.values()}
        rows = [[show_value(row.get(name)) for name in shown] for row in content.rows]
        return [Grid(self.title, numbers, rows)]

    def frame(self, content: Content) -> pd.DataFrame:
        """The columns of NAME.csv."""
        columns = {
            name: column
            for name, column in self.columns.items()
            if name not in self.optional
            or any(row.get(name) is not None for row in content.rows)
        }
        return make_frame(columns, content.rows)


def make_frame(columns: Columns, rows: Sequence[Row]) -> pd.DataFrame:
    """A data frame with these columns.

    Args:
        columns: as of `Section`.
        rows: name -> value; the names are those of the columns.

    Raises:
        ValueError: a row has a value that no column takes.
    """
    types = {
        one: _TYPES[kind]
        for name, column in columns.items()
        for kind in [column[0] if isinstance(column, tuple) else column]
        for one in (_ends(name) if kind is Estimate else (name,))
    }
    unknown = {
        name for row in rows for name, value in row.items() if value is not None
    } - columns.keys()
    if unknown:
        raise ValueError(f"rows have undeclared columns: {', '.join(sorted(unknown))}")
    flat = [_flatten(row) for row in rows]
    return pd.DataFrame(flat, columns=list(types)).astype(types)


def _flatten(row: Row) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in row.items():
        flat |= (
            spell_ends(name, value) if isinstance(value, Estimate) else {name: value}
        )
    return flat


def spell_ends(name: str, number: Estimate | None) -> dict[str, float | None]:
    """A number and the ends of its bracket, under its name."""
    ends = (number.value, number.low, number.high) if number else (None,) * 3
    return dict(zip(_ends(name), ends, strict=True))


def _ends(name: str) -> tuple[str, str, str]:
    return name, f"{name}_lo", f"{name}_hi"


def show_value(value: object) -> Text:
    """A value of a row as a field of a table; nothing for None and NaN."""
    match value:
        case Estimate():
            return show_estimate(value)
        case float():
            return Text("" if value != value else figures(value))
        case None:
            return Text("")
        case _:
            return Text(str(value))
