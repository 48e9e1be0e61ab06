"""The published numbers of a study, as the plan holds them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Published:
    """One row of the source, and the cell that repeats it.

    Attributes:
        label: the row's name in the source.
        cell: id of a cell of the plan.
        numbers: quantity -> values, several where there is one for each device.
        note: a remark on the row, such as a contradiction in the source.
    """

    label: str
    cell: str
    numbers: Mapping[str, tuple[float, ...]]
    note: str


@dataclass(frozen=True, slots=True)
class Study:
    """The source of published numbers, and its rows in order.

    Attributes:
        source: title, url, hardware, software, settings, base, note, if given.
        rows: none if the source has no numbers.
        override: name of the override that scaled the cells down, or None.
    """

    source: Mapping[str, str]
    rows: tuple[Published, ...]
    override: str | None = None

    @property
    def base(self) -> Published | None:
        """The row that the others are compared with."""
        label = self.source.get("base")
        return next((row for row in self.rows if row.label == label), None)


def read_study(experiment: Mapping[str, Any], cells: Collection[str]) -> Study | None:
    """The study of a plan with these cells; None if it repeats no published table.

    Raises:
        LookupError, TypeError, AttributeError: the plan is damaged.
    """
    # Plans from before there were studies have neither key.
    value = experiment.get("study")
    if value is None:
        return None
    rows = tuple(_read_row(row) for row in value["rows"])
    unknown = [row.cell for row in rows if row.cell not in cells]
    if unknown:
        raise LookupError(f"published rows of unknown cells: {', '.join(unknown)}")
    return Study(value["source"], rows, experiment.get("override"))


def _read_row(row: Mapping[str, Any]) -> Published:
    words = {"label", "cell", "note"}
    numbers = {
        key: tuple(found) if isinstance(found, list) else (found,)
        for key, found in row.items()
        if key not in words
    }
    return Published(row["label"], row["cell"], numbers, row.get("note", ""))
