"""How busy each rank's cores and each GPU were while training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rankbench.record import Record
from rankbench.results.elements.section import Content, Section
from rankbench.results.elements.text import Grid, Text
from rankbench.results.numbers.result_set import ResultSet
from rankbench.results.read.rows import Row

_TITLE = "Utilisation"

# Heading -> column.
_COLUMNS = {
    "CPU of each rank": "cpu",
    "its loaders": "loaders",
    "GPU of each device": "gpu",
}

# With more ranks or devices than this, values are summarised instead of listed.
_LISTED = 8


def make(found: ResultSet) -> Content | None:
    """A row for each cell whose records have it."""
    usage = {row.id: _usage(row) for row in found.results.rows}
    rows = [{"cell": cell, **texts} for cell, texts in usage.items() if texts]
    if not rows:
        return None
    # Columns without any value are left out.
    shown = {h: c for h, c in _COLUMNS.items() if any(c in row for row in rows)}
    fields = [
        [Text(row.get(column, "")) for column in ("cell", *shown.values())]
        for row in rows
    ]
    columns = dict.fromkeys(("cell", *shown), False)
    return Content(rows=rows, grids=[Grid(_TITLE, columns, fields)])


def _usage(row: Row) -> dict[str, str]:
    records = [launch.record for launch in row.launches]
    means = {
        "cpu": _means(records, "ranks", "cpu_utilisation"),
        "gpu": _means(records, "devices", "utilisation_mean"),
    }
    if row.cell.num_workers:
        means["loaders"] = _means(records, "ranks", "loader_utilisation")
    return {column: _show(values) for column, values in means.items() if values}


def _means(records: Sequence[Record], members: str, name: str) -> list[float | None]:
    """Mean over launches of each rank or device; [] if no launch recorded it."""
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
    """``98 %, 3 %``; of many values the least and the most."""
    if len(means) <= _LISTED:
        return ", ".join(map(_percent, means))
    known = [mean for mean in means if mean is not None]
    return f"{_percent(min(known))} to {_percent(max(known))} of {len(means)}"


def _percent(share: float | None) -> str:
    return "?" if share is None else f"{100 * share:.0f} %"


SECTION = Section(
    name="utilisation",
    title=_TITLE,
    reading=(
        "Means over the timed window and over launches. CPU: of one core, so that a "
        "rank with two busy threads has 200 %. GPU: share of the time in which any "
        "kernel ran. A GPU that is idle while another is busy waits for it."
    ),
    order=75,
    make=make,
    columns=dict.fromkeys(("cell", *_COLUMNS.values()), str),
    # Since version 2 this section has its own file.
)
