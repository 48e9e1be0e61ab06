"""The results table for a terminal: measured cells, and why others are missing."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from rankbench.commands._answer import WIDTH, open_console, print_brief
from rankbench.record import Layout, read_json
from rankbench.results.elements.names import shorten
from rankbench.results.elements.text import figures

# Heading -> column of table.csv. Columns with an interval have _lo and _hi. If not all
# fit, the first ones are shown. Throughput comes before them, by its unit.
COLUMNS = {
    "speedup": "speedup",
    "efficiency": "efficiency",
    "accuracy": "accuracy",
    "step (ms)": "step_ms",
}
GAP = 2  # between columns

Row = Mapping[str, str]

LEGEND = (
    "mean [95 % interval] over launches; =: equal within 3 %; n.s.: cannot be told "
    "apart from the base"
)


def print_results(layout: Layout) -> None:
    """Print the answer of a result directory, its table, and the paths of its files."""
    path = layout.table("csv")
    if not path.exists():
        print(f"no table yet: {path} is written after a cell is measured")
        return
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    facts = layout.table("json", "answer")
    if facts.exists():
        print_brief(read_json(facts))
        print()
    console = open_console()
    for part in describe(rows, console.width):
        console.print(part)
    files = [layout.table(suffix) for suffix in ("md", "html", "csv", "tex")]
    print("files:", *(os.path.relpath(file) for file in files if file.exists()))
    if layout.plot("scaling", "png").exists():
        print("plots:", os.path.relpath(layout.plot("scaling", "png").parent))


def describe(rows: Sequence[Row], width: int = WIDTH) -> list[Table | Text]:
    """Return a table of the rows that are ok, and a line for each other reason."""
    measured = [row for row in rows if row["status"] == "ok"]
    parts: list[Table | Text] = []
    if measured:
        short, shared = shorten([row["cell"] for row in rows])
        names = [short[row["cell"]] for row in measured]
        experiment = rows[0]["experiment"]
        title = f"{experiment}: {shared}" if shared else experiment
        table = Table(
            title=title,
            title_justify="left",
            box=None,
            pad_edge=False,
            padding=(0, GAP, 0, 0),
        )
        columns = _columns(measured, names, width)
        for number, (heading, _) in enumerate(columns):
            table.add_column(heading, justify="right" if number else "left")
        for texts in zip(*(texts for _, texts in columns), strict=True):
            table.add_row(*texts)
        parts += [table, Text(LEGEND, style="dim")]
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row["status"] != "ok":
            reasons.setdefault((row["status"], row["reason"]), []).append(row["cell"])
    for (status, reason), cells in reasons.items():
        which = cells[0] if len(cells) == 1 else f"{len(cells)} cells"
        parts.append(Text(f"{status}: {which}: {reason}"))
    return parts


def _columns(
    rows: Sequence[Row], names: Sequence[str], width: int
) -> list[tuple[str, Sequence[str]]]:
    """Return headings and texts of the columns that fit and are not empty."""
    launches = [f"{row['launches_ok']}/{row['launches']}" for row in rows]
    columns = [("cell", names), ("launches", launches)]
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
        (heading, [show_value(row, name) for row in rows])
        for heading, name in COLUMNS.items()
    ]
    for heading, texts in values:
        needed = _width(heading, texts)
        if any(texts) and needed <= left:
            columns.append((heading, texts))
            left -= needed
    return columns


def _width(heading: str, texts: Sequence[str]) -> int:
    return max(map(len, (heading, *texts))) + GAP


def show_value(row: Row, column: str) -> str:
    """Return value and interval in four digits, such as ``1183 [1010, 1268]``."""
    if not row[column]:
        return ""
    value, low, high = (
        figures(float(row[name])) if row.get(name) else ""
        for name in (column, f"{column}_lo", f"{column}_hi")
    )
    # An interval without width is omitted: all values are equal.
    interval = "" if not low or low == high else f" [{low}, {high}]"
    verdict = row.get(f"{column}_verdict") or ""
    return f"{value}{interval} {verdict}".rstrip()
