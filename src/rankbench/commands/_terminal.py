"""Answers and tables for a terminal, by rich."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from rankbench.record import Layout
from rankbench.results.elements.text import Grid, Note, replace_ids
from rankbench.say import say

if TYPE_CHECKING:
    from rankbench.results.render.files import Document

WIDTH = 100  # if the output is not a terminal

_GAP = 2  # between columns

# Nobody reads more rows in a terminal, and laying them out takes seconds.
_MOST_ROWS = 100

# A column of words gets so many characters before numbers get theirs.
_WORDS = 24

LEGEND = (
    "mean [95 % interval] over launches; =: equal within 3 %; n.s.: cannot be told "
    "apart from the base"
)


def open_console() -> Console:
    """A console of the terminal's width. It makes text, which `show` prints.

    What a log says in brackets or between colons is text, too.
    """
    console = Console(highlight=False, color_system=None, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = WIDTH
    return console


def show(*parts: RenderableType) -> None:
    """Print what rich makes of texts and tables."""
    console = open_console()
    with console.capture() as made:
        for part in parts:
            console.print(part)
    lines = made.get().removesuffix("\n").split("\n")
    say(*(line.rstrip() for line in lines))


def print_grid(
    grid: Grid, names: Mapping[str, str], title: str = "", *, whole: bool = False
) -> None:
    """Print a table of a document.

    Args:
        grid: the table; words are folded.
        names: id of each cell -> its short name.
        title: of the table.
        whole: whether all columns of numbers are printed, folded, too; else as many as
            fit.
    """
    if not grid.rows:
        return
    first = grid.rows[:_MOST_ROWS]
    rows = [[replace_ids(str(text), names) for text in row] for row in first]
    table = Table(
        title=title or None,
        title_justify="left",
        box=None,
        pad_edge=False,
        padding=(0, _GAP, 0, 0),
    )
    texts = dict(zip(grid.columns, zip(*rows, strict=True), strict=True))
    widths = {
        heading: _GAP + max(map(len, (*heading.split(), *fields)))
        for heading, fields in texts.items()
    }
    left = open_console().width - sum(
        min(widths[heading], _WORDS) for heading in texts if not grid.columns[heading]
    )
    shown = []
    for heading in texts:
        lines = heading.replace(" ", "\n")
        if grid.columns[heading]:
            left -= widths[heading]
            if left < 0 and not whole:
                continue
            table.add_column(lines, justify="right", no_wrap=not whole)
        else:
            table.add_column(lines, overflow="fold")
        shown.append(texts[heading])
    for row in zip(*shown, strict=True):
        table.add_row(*row)
    rest = len(grid.rows) - len(rows)
    said = [f"and {rest} more rows, which the files have"] if rest else []
    show(table, *said, "")


def print_notes(notes: Sequence[Note], names: Mapping[str, str]) -> None:
    """Print sentences beside their terms, with short names of cells."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for note in notes:
        words = (Text(replace_ids(text, names)) for text in (note.term, note.text))
        grid.add_row(*words)
    show(grid)


def print_results(layout: Layout) -> None:
    """Print the answer of a result directory, its table, and the paths of its files."""
    if not layout.table("csv").exists():
        say(f"no table yet: `rankbench table {layout.root}` writes it at any time")
        return
    # Imported here, so that listing the commands needs no package of the results.
    from rankbench.results.numbers.result_set import read
    from rankbench.results.render.files import make_document

    print_document(make_document(read(layout), only=("answer", "table")), layout)


def print_document(document: Document, layout: Layout) -> None:
    """Print the answer and the table of a document, and where its files are."""
    from rankbench.results.sections.answer import to_lines

    for one in document.opening:
        say(*to_lines(one.content.before), "")
    shared = f": {document.shared}" if document.shared else ""
    for grid in document.table.grids:
        is_first = grid is document.table.grids[0]
        title = f"{document.title}{shared}" if is_first else grid.title
        print_grid(grid, document.names, title)
    say(LEGEND)
    files = [
        layout.report,
        layout.answer("md"),
        layout.table("md"),
        layout.table("csv"),
    ]
    found = [file.name for file in files if file.exists()]
    say(f"files in {os.path.relpath(layout.root)}: {' '.join(found)}")
