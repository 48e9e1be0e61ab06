"""The command `rankbench show`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from rankbench.cell import spell_value
from rankbench.commands._base import how_to_rerun, name_path, open_cells
from rankbench.commands._options import OK, command, print_json
from rankbench.matrix.selection import find_cell
from rankbench.project import Run
from rankbench.project.status import find_state
from rankbench.record import read_attempt
from rankbench.say import say


@command(
    options="WHAT CELL --override --site",
    examples=(
        "show ddp.gloo.1x2.convnet.digits",
        "show scaling.yaml ddp.gloo.1x2.convnet.digits",
        "show results.tar.zst ddp.gloo.1x2.convnet.digits --json",
    ),
    json_holds="the latest record of the cell",
)
def show_cell(arguments: argparse.Namespace) -> int:
    """Print everything about one cell: its fields, its state, every attempt with
    its launches, and the paths of its records and its log.
    """
    with open_cells(arguments) as (run, jobs):
        return _show(arguments, run, jobs)


def _show(arguments: argparse.Namespace, run: Run, jobs: Mapping[str, Any]) -> int:
    cell, layout = find_cell(run.plan, arguments.cell), run.layout
    if cell.id in arguments.damaged:
        raise arguments.damaged[cell.id]
    attempts = {
        n: read_attempt(layout.attempt(cell.id, n)) for n in layout.attempts(cell.id)
    }
    if arguments.json:
        records = [record for found in attempts.values() for record in found]
        if not records:
            raise ValueError(f"{cell.id} has no record yet")
        print_json(records[-1])
        return OK
    state = find_state(run.plan, layout, cell, jobs.get(cell.id))
    reason = f": {state.reason}" if state.reason else ""
    say(f"{cell.id}\n  status    {state.status} {state.launches}{reason}")
    if state.where:
        say(f"  where     {state.where}")
    say(f"  hash      {cell.hash}")
    for key, value in cell.cell.fields.items():
        say(f"  {key:<16} {spell_value(value)}")
    for attempt, records in attempts.items():
        for record in records:
            window = max((r["window_s"] for r in record.get("ranks", [])), default=None)
            samples = record.get("samples", 0) * cell.cell.units_per_sample
            speed = f"{samples / window:.1f} {cell.cell.unit}/s" if window else ""
            said = (
                f"  attempt {attempt} launch {record['launch']}: {record['status']} "
                f"{record['reason'] or speed}  ({record['started']})"
            )
            say(said)
    say(f"  records   {name_path(layout.records / cell.id, arguments)}")
    say(f"  log       {name_path(layout.log(cell.id), arguments)}")
    say(f"  rerun     {how_to_rerun(arguments, cell.id)}")
    return OK
