"""How much of a step is spent on waiting for data, and what follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from rankbench.record import Record
from rankbench.results.elements.content import Section
from rankbench.results.elements.notes import Note
from rankbench.results.elements.text import Grid, Text, show_estimate
from rankbench.results.numbers.statistics import Estimate, median
from rankbench.results.numbers.summary import Summary

TITLE = "Loading"

ABOUT = (
    "Milliseconds of a step, means over ranks and steps, medians over launches: "
    "waiting for data, copying it to the device, and computing, communication included."
)

# From this share of a step on it is loading that decides how fast a cell trains.
DOMINATES = 0.5

_PARTS = ("load_ms", "transfer_ms", "compute_ms", "load_share")
_TITLES = ("load (ms)", "transfer (ms)", "compute (ms)", "load / step")


def estimate_parts(summary: Summary) -> dict[str, Estimate]:
    """Mean milliseconds of a step by part, and the share of load: over the launches."""
    return {
        name: median([getattr(launch, name) for launch in summary.measures])
        for name in _PARTS
    }


def explain(summaries: Sequence[Summary]) -> list[Note]:
    """In words, the rows that loading holds up."""
    notes = []
    for summary in _measured(summaries):
        share = estimate_parts(summary)["load_share"].value
        if share >= DOMINATES:
            workers = summary.row.cell.num_workers
            said = f"loading takes {share:.0%} of the step with num_workers {workers}"
            remedy = _remedy(summary.row.launches[0].record, workers)
            notes.append(Note(summary.row.id, f"{said}: {remedy}"))
    return notes


def _remedy(record: Record, workers: int) -> str:
    """What helps against waiting for data."""
    host = record["hosts"][0]
    ranks = sum(rank["host"] == host["host"] for rank in record["ranks"])
    if ranks * (1 + workers) < host["cores"]:
        return "more workers would help, more devices would not."
    return (
        f"ranks and workers have all {host['cores']} cores already; cheaper loading "
        "would help, more devices would not."
    )


def show(summaries: Sequence[Summary]) -> Section | None:
    """Nothing where no cell is ok."""
    if not _measured(summaries):
        return None
    return Section(
        title=TITLE,
        about=ABOUT,
        files=("loading.csv",),
        grids=[show_parts(summaries)],
        notes=explain(summaries),
    )


def show_parts(summaries: Sequence[Summary]) -> Grid:
    """A row for each cell that is ok."""
    words = ("cell", "num_workers", "augment")
    columns = dict.fromkeys(words, False) | dict.fromkeys(_TITLES, True)
    rows = []
    for summary in _measured(summaries):
        cell, parts = summary.row.cell, estimate_parts(summary)
        texts = [Text(summary.row.id), Text(str(cell.num_workers)), Text(cell.augment)]
        rows.append([*texts, *(show_estimate(parts[name]) for name in _PARTS)])
    return Grid(TITLE, columns, rows)


def make_frame(summaries: Sequence[Summary]) -> pd.DataFrame:
    """The columns of loading.csv."""
    ends = ("", "_lo", "_hi")
    numbers = [f"{name}{end}" for name in _PARTS for end in ends]
    lines: list[dict[str, Any]] = []
    for summary in _measured(summaries):
        cell = summary.row.cell
        line: dict[str, Any] = {"cell": summary.row.id, "augment": cell.augment}
        line["num_workers"] = cell.num_workers
        for name, part in estimate_parts(summary).items():
            values = (part.value, part.low, part.high)
            line |= {f"{name}{e}": v for e, v in zip(ends, values, strict=True)}
        lines.append(line)
    columns = ["cell", "num_workers", "augment", *numbers]
    frame = pd.DataFrame(lines, columns=columns)
    return frame.astype(dict.fromkeys(numbers, "float64"))


def _measured(summaries: Sequence[Summary]) -> list[Summary]:
    return [summary for summary in summaries if summary.measures]
