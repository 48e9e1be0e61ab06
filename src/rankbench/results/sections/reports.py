"""Tables in the shapes that reports of such measurements commonly have.

Each is a selection of what the whole table has, for readers who look for one question:
how far one server goes, and several; which method takes how long for which accuracy;
how much memory each device needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from rankbench.cell import Topology
from rankbench.results.elements.content import Section
from rankbench.results.elements.text import Grid, Text, figures, show_estimate
from rankbench.results.numbers.measures import peak_memory
from rankbench.results.numbers.summary import Summary

TITLE = "Reports"
ABOUT = (
    "The same rows as in the whole table, by question. Speedup is over single on one "
    "device, where the experiment has it. Memory: medians over launches."
)

WITHIN, ACROSS = "Within one server", "Across servers"
METHODS, MEMORY = "Methods", "Memory of each rank"

# The memory of more ranks than this is summed up, not listed.
_LISTED = 8

Column = tuple[str, bool, Callable[[Summary], Text]]


def show(summaries: Sequence[Summary]) -> Section | None:
    """Nothing where no cell is ok."""
    grids = find_grids(summaries)
    if not grids:
        return None
    return Section(title=TITLE, about=ABOUT, files=("reports.csv",), grids=grids)


def find_grids(summaries: Sequence[Summary]) -> list[Grid]:
    """The tables that have something to tell."""
    ok = [summary for summary in summaries if summary.measures]
    within = [s for s in ok if _topology(s).nodes == 1]
    across = [s for s in ok if _topology(s).devices_per_node == 1]
    trained = [s for s in ok if "accuracy" in s.numbers]
    grids = []
    if any(_topology(s).devices > 1 for s in within):
        grids.append(_grid(WITHIN, SCALING_COLUMNS, within))
    if any(_topology(s).nodes > 1 for s in across):
        grids.append(_grid(ACROSS, SCALING_COLUMNS, across))
    if trained:
        grids.append(_grid(METHODS, METHOD_COLUMNS, trained))
    if ok:
        grids.append(_grid(MEMORY, MEMORY_COLUMNS, ok))
    return grids


def make_frame(summaries: Sequence[Summary]) -> pd.DataFrame:
    """The columns of reports.csv: a row for each field of each table, as shown."""
    fields = [
        (grid.title, number, column, str(text))
        for grid in find_grids(summaries)
        for number, row in enumerate(grid.rows, start=1)
        for column, text in zip(grid.columns, row, strict=True)
    ]
    return pd.DataFrame(fields, columns=["table", "row", "column", "value"])


def _grid(title: str, columns: Sequence[Column], rows: Sequence[Summary]) -> Grid:
    headings = {heading: number for heading, number, _ in columns}
    shown = [[show_field(one) for _, _, show_field in columns] for one in rows]
    return Grid(title, headings, shown)


def _topology(summary: Summary) -> Topology:
    return Topology.parse(summary.row.cell.topology)


def _word(heading: str, find: Callable[[Summary], object]) -> Column:
    return heading, False, lambda summary: Text(str(find(summary)))


def _count(heading: str, find: Callable[[Summary], int]) -> Column:
    return heading, True, lambda summary: Text(str(find(summary)))


def _number(heading: str, name: str) -> Column:
    return heading, True, lambda summary: show_estimate(summary.numbers.get(name))


def _show_memory(summary: Summary) -> str:
    """``358.2 / 361 MiB``; of many ranks the least and the most."""
    launches = [launch.record["ranks"] for launch in summary.row.launches]
    by_rank = zip(*launches, strict=True)
    peaks = [
        float(np.median([peak_memory([rank]) for rank in ranks])) for ranks in by_rank
    ]
    if len(peaks) > _LISTED:
        return f"{figures(min(peaks))} to {figures(max(peaks))}"
    return " / ".join(map(figures, peaks))


_CELL = _word("cell", lambda summary: summary.row.id)

SCALING_COLUMNS = (
    _CELL,
    _word("backend", lambda summary: summary.row.cell.backend),
    _count("servers", lambda summary: _topology(summary).nodes),
    _count("devices per server", lambda summary: _topology(summary).devices_per_node),
    _number("step (ms)", "step_ms"),
    _number("throughput (samples/s)", "throughput"),
    _number("speedup", "speedup"),
    _word("marks", lambda summary: ", ".join(summary.marks)),
)
METHOD_COLUMNS = (
    _CELL,
    _count("workers", lambda summary: summary.row.cell.num_workers),
    _number("accuracy", "accuracy"),
    _number("training (s)", "total_s"),
    _number("epoch (s)", "epoch_s"),
)
MEMORY_COLUMNS = (
    _CELL,
    _number("most (MiB)", "memory_mib"),
    _word("each (MiB)", _show_memory),
)
