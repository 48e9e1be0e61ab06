"""Who was busy while training: every rank's cores and every GPU of each cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rankbench.record import Record
from rankbench.results.elements.content import Section
from rankbench.results.elements.text import Grid, Text
from rankbench.results.read.rows import Row

# A cell of the utilisation table: column -> text, without the columns that it lacks.
Usage = dict[str, str]

CPU, LOADERS, GPUS = "CPU of each rank", "its loaders", "GPU of each device"

ABOUT = (
    "Means over the timed window and over launches. CPU: of one core, so that a rank "
    "with two busy threads has 200 %. GPU: share of the time in which any kernel ran; "
    "one that is idle while another is busy waits for it."
)

LISTED = 8


def show_usage(rows: Sequence[Row]) -> Section | None:
    """Nothing where no record tells of it."""
    usage = collect_usage(rows)
    if not usage:
        return None
    title = "Utilisation"
    columns = dict.fromkeys(usage[0], False)
    fields = [[Text(text) for text in one.values()] for one in usage]
    return Section(title=title, about=ABOUT, grids=[Grid(title, columns, fields)])


def collect_usage(rows: Sequence[Row]) -> list[Usage]:
    """What the records of each row tell; rows without any of it are left out.

    Rows of one table have the same columns: those that any of them can fill.
    """
    found = {row.id: _usage(row) for row in rows}
    columns = [
        column
        for column in (CPU, LOADERS, GPUS)
        if any(column in usage for usage in found.values())
    ]
    return [
        {"cell": cell, **{column: usage.get(column, "") for column in columns}}
        for cell, usage in found.items()
        if usage
    ]


def _usage(row: Row) -> Usage:
    records = [launch.record for launch in row.launches]
    told = {
        CPU: _means(records, "ranks", "cpu_utilisation"),
        GPUS: _means(records, "devices", "utilisation_mean"),
    }
    if row.cell.num_workers:
        told[LOADERS] = _means(records, "ranks", "loader_utilisation")
    return {column: _show(means) for column, means in told.items() if means}


def _means(records: Sequence[Record], members: str, name: str) -> list[float | None]:
    """Mean over launches of each rank or device; [] where no launch tells of it."""
    launches: list[Sequence[Mapping[str, Any]]] = [
        record.get(members) or [] for record in records
    ]
    means: list[float | None] = []
    for index in range(max(map(len, launches), default=0)):
        values = [each[index].get(name) for each in launches if index < len(each)]
        known = [value for value in values if value is not None]
        means.append(sum(known) / len(known) if known else None)
    return means if any(mean is not None for mean in means) else []


def _show(means: Sequence[float | None]) -> str:
    """``98 %, 3 %``; of many the least and the most."""
    if len(means) <= LISTED:
        return ", ".join(map(_percent, means))
    known = [mean for mean in means if mean is not None]
    return f"{_percent(min(known))} to {_percent(max(known))} of {len(means)}"


def _percent(share: float | None) -> str:
    return "?" if share is None else f"{100 * share:.0f} %"
