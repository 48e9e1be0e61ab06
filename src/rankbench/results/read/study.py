"""What a study's source published, as the plan holds it."""

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
        note: what is to be said of the row, such as where the source contradicts it.
    """

    label: str
    cell: str
    numbers: Mapping[str, tuple[float, ...]]
    note: str


@dataclass(frozen=True, slots=True)
class Study:
    """The source of published numbers, and its rows in order.

    Attributes:
        source: title, url, hardware, software, settings, base, note; not each is there.
        rows: none where the source has no numbers.
        override: what the measured cells were scaled down by, or None.
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
    """The study of a plan with these cells; None where it repeats nobody's.

    Raises:
        LookupError, TypeError, AttributeError: the plan is damaged.
    """
    # Plans of before there were studies have neither key.
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
