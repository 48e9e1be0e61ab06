"""The command `rankbench status`."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator
from typing import Any

from rankbench.cell import Cell, spell_value
from rankbench.commands._base import (
    describe_states,
    name_path,
    open_cells,
    shift_experiment,
)
from rankbench.commands._options import FINDING, OK, command, print_json
from rankbench.matrix.expansion import OF_PLACE
from rankbench.matrix.selection import find_cell
from rankbench.own_files import names_in, placeholders
from rankbench.plan import PlannedCell
from rankbench.project.run import Run
from rankbench.project.status import State, find_state, find_turns
from rankbench.record import (
    describe_launch,
    explain_damage,
    read_attempt,
    repeated,
)
from rankbench.say import say
from rankbench.schema import keys_of, load_schema

_REASON = 80  # columns


@command(
    options="WHAT CELLS --override --site --only",
    examples=(
        "status",
        "status scaling.yaml --site slurm_profile",
        "status ddp.gloo.1x2.convnet.digits",
        "status results/quickstart/results.tar.zst --json",
    ),
    exits="0 no cell has failed, 1 one has, 2 bad input",
    json_holds="the state of each cell, its log, the command that reruns it; of cells "
    "that are named also their launches",
)
def show_status(arguments: argparse.Namespace) -> int:
    """Print the state of every cell, also during a run: its launches, why it
    failed, its job and hosts, its log, and the command that measures it again. Of
    cells that are named, print everything: their fields, and each launch of each
    attempt. A result folder or a bundle needs no experiment; then only its records
    count, and no queue.
    """
    shift_experiment(arguments, "cells")
    with open_cells(arguments) as (run, jobs):
        cells = [find_cell(run.plan, name) for name in arguments.cells] or run.chosen
        turns = find_turns(run.layout)
        states = {
            cell.id: State("stale", "", explain_damage(damage, run.layout.root), "")
            if (damage := arguments.damaged.get(cell.id))
            else find_state(
                run.plan, run.layout, cell, jobs.get(cell.id), turns.get(cell.id)
            )
            for cell in cells
        }
        rows = describe_states(run, states, arguments)
        if arguments.cells:
            for cell, row in zip(cells, rows, strict=True):
                if damage := arguments.damaged.get(cell.id):
                    raise damage
                row["records"] = {
                    number: read_attempt(run.layout.attempt(cell.id, number))
                    for number in run.layout.attempts(cell.id)
                }
        if arguments.json:
            print_json(rows)
        else:
            for cell, row in zip(cells, rows, strict=True):
                say(*_describe(row, run, cell, arguments))
    return FINDING if any(state.has_failed for state in states.values()) else OK


def _describe(
    row: dict[str, Any], run: Run, cell: PlannedCell, arguments: argparse.Namespace
) -> Iterator[str]:
    """Lines about a cell; all about it if its launches were read."""
    yield f"{row['status']:<12} {row['launches']:>5}  {row['cell']}"
    lines = textwrap.wrap(
        row["reason"], _REASON, break_long_words=False, break_on_hyphens=False
    )
    if row["where"]:
        lines += [f"{row['where']}; log: {row['log']}", f"again: {row['rerun']}"]
    yield from (f"{'':20}{line}" for line in lines)
    if "records" not in row:
        return
    hidden, given = _list_hidden(cell.cell), {**cell.cell.fields, "hash": cell.hash}
    fields = {k: v for k, v in given.items() if v is not None and k not in hidden}
    width = max(map(len, fields))
    for key, value in fields.items():
        yield f"  {key:<{width}} {spell_value(value)}"
    for number, records in row["records"].items():
        replaced = list(map(id, repeated(records)))
        for record in records:
            said = describe_launch(record, is_repeated=id(record) in replaced)
            yield f"  attempt {number}  {said}  ({record['started']})"
    yield f"  {'records':<{width}} {name_path(run.layout.records / cell.id, arguments)}"


def _list_hidden(cell: Cell) -> set[str]:
    """Fields that say nothing of a script, which chooses its own."""
    if cell.script is None:
        return set()
    used = placeholders(cell.script["args"]) | names_in(cell.script["samples_per_step"])
    swept = {*keys_of(load_schema("experiment"))}
    return (swept | {"epochs", "evaluate"}) - OF_PLACE - used - {"strategy"}
