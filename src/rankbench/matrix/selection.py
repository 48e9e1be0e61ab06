"""Filters `key=value,value`, which select cells for `only` and `exclude`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rankbench.cell import Cell, spell_value
from rankbench.invocation import named_in, rankbench_command
from rankbench.plan import Plan, PlannedCell
from rankbench.schema import did_you_mean


@dataclass(frozen=True, slots=True)
class Filter:
    """Accepts a cell if the cell has one of the values for every key.

    Attributes:
        wanted: field of the cell or option of its strategy -> accepted values.
    """

    wanted: Mapping[str, frozenset[str]]

    @classmethod
    def parse(cls, text: str) -> Filter:
        """Read ``"strategy=dp,ddp topology=1x2"``.

        Raises:
            ValueError: a part is not key=value,value.
        """
        wanted: dict[str, frozenset[str]] = {}
        for part in text.split():
            key, equals, values = part.partition("=")
            if not (key and equals and all(values.split(","))):
                raise ValueError(f"{part!r} is not key=value,value")
            if key in wanted:
                raise ValueError(f"{key!r} appears twice in {text!r}")
            wanted[key] = frozenset(values.split(","))
        if not wanted:
            raise ValueError("an empty filter: expected key=value,value")
        return cls(wanted)

    def accepts(self, cell: Cell) -> bool:
        return all(spell(cell, key) in values for key, values in self.wanted.items())

    def check(self, cells: Sequence[Cell]) -> None:
        """Check that each key and value occurs in some cell, to find typing errors.

        Raises:
            ValueError: one does not occur; suggests a similar one.
        """
        keys = sorted({key for cell in cells for key in cell.fields})
        for key, values in self.wanted.items():
            if key not in keys:
                raise ValueError(f"unknown key {key!r}{did_you_mean(key, keys)}")
            spelled = (spell(cell, key) for cell in cells)
            present = {word for word in spelled if word is not None}
            for value in sorted(values - present):
                raise ValueError(
                    f"no cell has {key}={value} (there are "
                    f"{', '.join(sorted(present))})"
                    f"{did_you_mean(value, present)}"
                )


def spell(cell: Cell, key: str) -> str | None:
    """The value of a field or of an option as text; None if there is no such key."""
    fields = cell.fields
    return spell_value(fields[key]) if key in fields else None


def find_cell(plan: Plan, cell_id: str) -> PlannedCell:
    """A cell of a plan by its readable id.

    Raises:
        ValueError: there is no such cell; suggests a similar id.
    """
    if cell_id not in plan.cells:
        raise ValueError(
            f"no cell {cell_id!r} in the experiment {plan.name}"
            f"{did_you_mean(cell_id, plan.cells)} "
            f"(`{rankbench_command('status', **named_in(plan.experiment))}` lists them)"
        )
    return plan.cells[cell_id]


def select_cells(plan: Plan, only: str | None) -> list[PlannedCell]:
    """The cells that match a filter `key=value,value ...`; all without a filter.

    Raises:
        ValueError: the filter is malformed, or no cell matches it.
    """
    planned = list(plan.cells.values())
    if not only:
        return planned
    try:
        wanted = Filter.parse(only)
        wanted.check([p.cell for p in planned])
    except ValueError as error:
        raise ValueError(f"only: {error}") from error
    chosen = [p for p in planned if wanted.accepts(p.cell)]
    if not chosen:
        raise ValueError(f"only: no cell matches {only!r}")
    return chosen
