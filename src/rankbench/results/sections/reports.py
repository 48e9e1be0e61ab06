"""Tables in the shapes that reports of such measurements commonly have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rankbench.results.elements.section import Content, Section, show_value
from rankbench.results.elements.text import Grid, figures
from rankbench.results.numbers.measures import peak_memory
from rankbench.results.numbers.result_set import ResultSet
from rankbench.results.numbers.statistics import Estimate
from rankbench.results.numbers.summary import Summary

# With more ranks than this, memory is summarised instead of listed.
_LISTED = 8

# Heading -> function that gives the value of a row.
Columns = Mapping[str, Callable[[Summary], Any]]


def make(found: ResultSet) -> Content | None:
    """A row of the CSV for each field of each table."""
    tables = find_tables(found)
    rows = [
        {"table": title, "row": number, "column": heading, "value": _to_csv(value)}
        for title, (columns, summaries) in tables.items()
        for number, summary in enumerate(summaries, start=1)
        for heading, find in columns.items()
        for value in [find(summary)]
    ]
    grids = [_grid(title, *table) for title, table in tables.items()]
    return Content(rows=rows, grids=grids) if rows else None


def find_tables(found: ResultSet) -> dict[str, tuple[Columns, Sequence[Summary]]]:
    """Title -> columns and rows of each table that has something to show."""
    within = [s for s in found.measured if s.row.cell.size.nodes == 1]
    across = [s for s in found.measured if s.row.cell.size.devices_per_node == 1]
    trained = [s for s in found.measured if "accuracy" in s.numbers]
    tables: dict[str, tuple[Columns, Sequence[Summary]]] = {}
    if any(s.row.cell.size.devices > 1 for s in within):
        tables["Within one server"] = (_without_blanks(_SCALING, within), within)
    if any(s.row.cell.size.nodes > 1 for s in across):
        tables["Across servers"] = (_without_blanks(_SCALING, across), across)
    if trained:
        tables["Methods"] = (_METHODS, trained)
    if found.measured:
        tables["Memory of each rank"] = (_MEMORY, found.measured)
    return tables


def _without_blanks(columns: Columns, rows: Sequence[Summary]) -> Columns:
    """The columns without those of a unit that no row has."""
    units = {f"throughput ({row.row.cell.unit}/s)" for row in rows}
    return {
        heading: find
        for heading, find in columns.items()
        if heading in units or not heading.startswith("throughput")
    }


def _grid(title: str, columns: Columns, rows: Sequence[Summary]) -> Grid:
    numbers = {heading: heading not in _WORDS for heading in columns}
    shown = [[show_value(find(row)) for find in columns.values()] for row in rows]
    return Grid(title, numbers, shown)


def _to_csv(value: object) -> str:
    """Text with 4 digits of each number, whatever its interval."""
    if not isinstance(value, Estimate):
        return "" if value is None else str(value)
    text = figures(value.value)
    if value.interval:
        text += f" [{', '.join(map(figures, value.interval))}]"
    return f"{text} {value.verdict}".rstrip()


def _number(name: str) -> Callable[[Summary], Estimate | None]:
    return lambda summary: summary.numbers.get(name)


def _rate(unit: str) -> Callable[[Summary], Estimate | None]:
    """Throughput of rows with this unit; each unit has its own column."""
    return lambda summary: (
        summary.numbers.get("throughput") if summary.row.cell.unit == unit else None
    )


def _show_memory(summary: Summary) -> str:
    """``358.2 / 361`` MiB; of many ranks the least and the most."""
    launches = [launch.record["ranks"] for launch in summary.row.launches]
    by_rank = zip(*launches, strict=True)
    peaks = [
        float(np.median([peak_memory([rank]) for rank in ranks])) for ranks in by_rank
    ]
    if len(peaks) > _LISTED:
        return f"{figures(min(peaks))} to {figures(max(peaks))}"
    return " / ".join(map(figures, peaks))


_SCALING: Columns = {
    "cell": lambda summary: summary.row.id,
    "backend": lambda summary: summary.row.cell.backend,
    "servers": lambda summary: summary.row.cell.size.nodes,
    "devices per server": lambda summary: summary.row.cell.size.devices_per_node,
    "step (ms)": _number("step_ms"),
    "throughput (samples/s)": _rate("samples"),
    "throughput (tokens/s)": _rate("tokens"),
    "speedup": _number("speedup"),
    "marks": lambda summary: ", ".join(summary.marks),
}
_METHODS: Columns = {
    "cell": lambda summary: summary.row.id,
    "workers": lambda summary: summary.row.cell.num_workers,
    "accuracy": _number("accuracy"),
    "training (s)": _number("total_s"),
    "epoch (s)": _number("epoch_s"),
}
_MEMORY: Columns = {
    "cell": lambda summary: summary.row.id,
    "most (MiB)": _number("memory_mib"),
    "each (MiB)": _show_memory,
}
_WORDS = {"cell", "backend", "marks", "each (MiB)"}

SECTION = Section(
    name="reports",
    title="Reports",
    reading=(
        "The rows of the table by question: how far one server goes, and several; "
        "which method takes how long for which accuracy; how much memory each rank "
        "needs. Speedup is over single on one device, if the experiment has it. Memory "
        "is a median over launches."
    ),
    order=100,
    make=make,
    columns={"table": str, "row": int, "column": str, "value": str},
    # Version 2 has verdicts behind the intervals.
)
