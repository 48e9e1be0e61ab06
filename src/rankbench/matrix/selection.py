"""Filters `key=value,value`, which select cells for `only` and `exclude`."""

from __future__ import annotations

from collections.abc import Mapping

from rankbench.cell import Cell, spell_value
from rankbench.invocation import named_in, rankbench_command
from rankbench.plan import Plan, PlannedCell
from rankbench.schema import did_you_mean, naming


def find_matching(cells: Mapping[str, Cell], text: str) -> set[str]:
    """Ids of the cells that have one of the values for every key.

    Args:
        cells: by id.
        text: such as ``"strategy=dp,ddp topology=1x2"``.

    Raises:
        ValueError: a part is not key=value,value; a key or a value occurs in no cell,
            which is most often a typing error; or no cell has all of them.
    """
    fields = {
        name: {key: spell_value(value) for key, value in cell.fields.items()}
        for name, cell in cells.items()
    }
    keys = sorted({key for own in fields.values() for key in own})
    found, seen = {*cells}, set()
    for part in text.split():
        key, equals, values = part.partition("=")
        wanted = {*values.split(",")}
        if not (key and equals and all(wanted)):
            raise ValueError(f"{part!r} is not key=value,value")
        if key in seen:
            raise ValueError(f"{key!r} appears twice in {text!r}")
        if key not in keys:
            raise ValueError(f"unknown key {key!r}{did_you_mean(key, keys)}")
        seen.add(key)
        present = {own[key] for own in fields.values() if key in own}
        for value in sorted(wanted - present):
            raise ValueError(
                f"no cell has {key}={value} (there are {', '.join(sorted(present))})"
                f"{did_you_mean(value, present)}"
            )
        found = {name for name in found if fields[name].get(key) in wanted}
    if not seen:
        raise ValueError("an empty filter: expected key=value,value")
    if not found:
        raise ValueError(f"no cell matches {text!r}")
    return found


def find_cell(plan: Plan, cell_id: str) -> PlannedCell:
    """A cell of a plan by its readable id, or by parts of it, as tables show them.

    Raises:
        ValueError: there is no such cell, or several; suggests ids.
    """
    if cell_id in plan.cells:
        return plan.cells[cell_id]
    alike = [name for name in plan.cells if _is_short_for(cell_id, name)]
    # Tables omit what all cells have in common: all others have its parts, too.
    for name in alike:
        if all(_is_short_for(name, other) for other in alike):
            return plan.cells[name]
    some = ", ".join(alike[:3]) + " ..." * (len(alike) > 3)
    said = f"{len(alike)} cells are called so: {some}"
    raise ValueError(
        f"no cell {cell_id!r} in the experiment {plan.name}"
        f"{f'; {said}' if alike else did_you_mean(cell_id, plan.cells)} "
        f"(`{rankbench_command('status', **named_in(plan.experiment))}` lists them)"
    )


def _is_short_for(short: str, cell_id: str) -> bool:
    parts = iter(cell_id.split("."))
    return all(part in parts for part in short.split("."))


def select_cells(plan: Plan, only: str | None) -> list[PlannedCell]:
    """The cells that match a filter `key=value,value ...`; all without a filter.

    Raises:
        ValueError: the filter is malformed, or no cell matches it.
    """
    if not only:
        return list(plan.cells.values())
    with naming("only"):
        cells = {name: planned.cell for name, planned in plan.cells.items()}
        chosen = find_matching(cells, only)
    return [planned for name, planned in plan.cells.items() if name in chosen]
