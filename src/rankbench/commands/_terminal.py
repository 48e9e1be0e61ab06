"""Answers and tables for a terminal, by rich."""

from __future__ import annotations

import csv
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from rankbench.record import Layout, read_json
from rankbench.results.elements.names import replace_ids, shorten
from rankbench.results.elements.text import Grid, Note, show_estimate
from rankbench.say import say

WIDTH = 120  # if the output is not a terminal

# Of more workloads, the first ones are printed.
_MOST_WORKLOADS = 4

# Heading -> column of table.csv, and the factor to its unit. Columns with an interval
# have _lo and _hi. If not all fit, the first ones are shown. Throughput comes before
# them, by its unit.
COLUMNS = {
    "efficiency": ("efficiency", 1.0),
    "per device": ("per_device", 1.0),
    "GiB": ("memory_mib", 1 / 1024),
    "MFU (%)": ("mfu_pct", 1.0),
    "batch": ("global_batch", 1.0),
}
GAP = 2  # between columns

Row = Mapping[str, str]

LEGEND = (
    "mean [95 % interval] over launches; =: equal within 3 %; n.s.: cannot be told "
    "apart from the base"
)


def open_console() -> Console:
    """A console of the terminal's width. It makes text, which `show` prints."""
    console = Console(highlight=False, color_system=None)
    if not console.is_terminal:
        console.width = WIDTH
    return console


def show(*parts: RenderableType) -> None:
    """Print what rich makes of texts and tables."""
    console = open_console()
    with console.capture() as made:
        for part in parts:
            console.print(part)
    say(made.get().removesuffix("\n"))


def make_table(columns: Sequence[tuple[str, Sequence[str]]], title: str = "") -> Table:
    """Columns of headings and texts; the first has names, the others have numbers."""
    table = Table(
        title=title or None,
        title_justify="left",
        box=None,
        pad_edge=False,
        padding=(0, GAP, 0, 0),
    )
    for number, (heading, _) in enumerate(columns):
        table.add_column(heading, justify="right" if number else "left")
    for texts in zip(*(texts for _, texts in columns), strict=True):
        table.add_row(*texts)
    return table


def print_grid(grid: Grid, names: Mapping[str, str]) -> None:
    """Print a table of a document, with short names of cells."""
    rows = [[replace_ids(str(text), names) for text in row] for row in grid.rows]
    if rows:
        columns = zip(grid.columns, zip(*rows, strict=True), strict=True)
        show(make_table([*columns]), "")


def print_notes(notes: Sequence[Note], names: Mapping[str, str]) -> None:
    """Print sentences beside their terms, with short names of cells."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for note in notes:
        words = (Text(replace_ids(text, names)) for text in (note.term, note.text))
        grid.add_row(*words)
    show(grid)


def print_brief(answer: Mapping[str, Any]) -> None:
    """Print an answer, as `answer.json` has it, in at most fifteen lines."""
    # Imported here, so that listing the commands needs no package of the results.
    from rankbench.results.advice.words import in_brief, to_lines

    say(*to_lines(in_brief(dict(answer))))


def print_details(
    answer: Mapping[str, Any],
    cells: Sequence[str],
    *,
    only: Collection[str] | None = None,
) -> None:
    """Print all that an answer says, in sentences.

    Args:
        answer: as `answer.json` has it.
        cells: all ids of the plan; short names leave out what they share.
        only: terms to print; None for all.
    """
    from rankbench.results.advice.words import in_sentences

    workloads = answer["workloads"]
    shown: dict[str, Any] = {**answer, "workloads": workloads[:_MOST_WORKLOADS]}
    notes = [n for n in in_sentences(shown) if only is None or n.term in only]
    if notes:
        print_notes(notes, shorten(cells)[0])
    else:
        say("nothing is open: no launch would settle anything")
    if len(workloads) > _MOST_WORKLOADS:
        more = len(workloads) - _MOST_WORKLOADS
        say(f"{more} more workloads: answer.md and answer.json have them all")


def print_results(layout: Layout) -> None:
    """Print the answer of a result directory, its table, and the paths of its files."""
    path = layout.table("csv")
    if not path.exists():
        say(f"no table yet: {path} is written after a cell is measured")
        return
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    facts = layout.answer("json")
    if facts.exists():
        print_brief(read_json(facts))
        say("")
    show(*describe(rows, open_console().width))
    files = [layout.table(suffix) for suffix in ("md", "html", "csv", "tex")]
    there = [os.path.relpath(file) for file in files if file.exists()]
    say(f"files: {' '.join(there)}")
    if layout.plot("scaling", "png").exists():
        say(f"plots: {os.path.relpath(layout.plot('scaling', 'png').parent)}")


def describe(rows: Sequence[Row], width: int = WIDTH) -> list[Table | Text]:
    """Return a table of the rows that are ok, and a line for each other reason."""
    measured = sort_by_speed([row for row in rows if row["status"] == "ok"])
    parts: list[Table | Text] = []
    if measured:
        short, shared = shorten([row["cell"] for row in rows])
        names = [short[row["cell"]] for row in measured]
        experiment = rows[0]["experiment"]
        title = f"{experiment}: {shared}" if shared else experiment
        columns = choose_columns(measured, names, width)
        parts += [make_table(columns, title), Text(LEGEND, style="dim")]
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row["status"] != "ok":
            reasons.setdefault((row["status"], row["reason"]), []).append(row["cell"])
    for (status, reason), cells in reasons.items():
        which = cells[0] if len(cells) == 1 else f"{len(cells)} cells"
        parts.append(Text(f"{status}: {which}: {reason}"))
    return parts


def sort_by_speed(rows: Sequence[Row]) -> list[Row]:
    """The rows of each model and data together, the fastest first."""

    def kind(row: Row) -> tuple[str | None, ...]:
        return tuple(map(row.get, ("model", "data")))

    kinds = list(dict.fromkeys(map(kind, rows)))
    return sorted(
        rows, key=lambda row: (kinds.index(kind(row)), -float(row["throughput"]))
    )


def choose_columns(
    rows: Sequence[Row], names: Sequence[str], width: int
) -> list[tuple[str, Sequence[str]]]:
    """Return headings and texts of the columns that fit and are not empty."""
    columns: list[tuple[str, Sequence[str]]] = [("cell", names)]
    counts = {row[name] for row in rows for name in ("launches_ok", "launches")}
    if len(counts) > 1:
        launches = [f"{row['launches_ok']}/{row['launches']}" for row in rows]
        columns.append(("launches", launches))
    left = width - sum(_width(*column) for column in columns)
    rates = [row["throughput"] and (row.get("unit") or "samples/s") for row in rows]
    values = [
        (
            unit,
            [
                show_value(row, "throughput") if rate == unit else ""
                for row, rate in zip(rows, rates, strict=True)
            ],
        )
        for unit in sorted({*rates} - {""})
    ]
    # The marks may say that the first number means little.
    values.append(("marks", [row["marks"] for row in rows]))
    values += [
        (heading, [show_value(row, name, factor) for row in rows])
        for heading, (name, factor) in COLUMNS.items()
    ]
    for heading, texts in values:
        if any(texts):
            left -= _width(heading, texts)
            if left < 0:
                break
            columns.append((heading, texts))
    return columns


def _width(heading: str, texts: Sequence[str]) -> int:
    return max(map(len, (heading, *texts))) + GAP


def show_value(row: Row, column: str, factor: float = 1.0) -> str:
    """Return value and interval as all documents do: ``1180 [1010, 1270]``."""
    from rankbench.results.numbers.statistics import Estimate

    if not row.get(column):
        return ""
    value, low, high = (
        float(row[name]) if row.get(name) else None
        for name in (column, f"{column}_lo", f"{column}_hi")
    )
    assert value is not None
    # An interval without width is omitted: all values are equal.
    ends = (None, None) if low == high else (low, high)
    verdict = row.get(f"{column}_verdict") or ""
    return str(show_estimate(Estimate(value, *ends, verdict=verdict).scaled(factor)))
