"""The command `rankbench show`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rankbench.commands.base import (
    OK,
    add_experiment,
    add_parser,
    how_to_rerun,
    plan_run,
    print_json,
)
from rankbench.matrix.selection import find_cell
from rankbench.project.status import find_jobs, find_state
from rankbench.record import read_attempt

ABOUT = """\
Print everything about one cell: its fields, its state, every attempt with its launches,
and the paths of its records and its log."""

EXAMPLES = """\
examples:
  rankbench show ddp.gloo.1x2.convnet.digits
  rankbench show ddp.gloo.1x2.convnet.digits --json | jq .software

exit status: 0, or 2 on bad input"""


def add(commands: Any) -> None:
    """Add the command to the parser of `rankbench`."""
    parser = add_parser(
        commands,
        "show",
        show_cell,
        summary="show everything about one cell",
        about=ABOUT,
        examples=EXAMPLES,
        json_holds="the latest record of the cell",
    )
    add_experiment(parser)
    parser.add_argument("cell", help="id of a cell")


def show_cell(arguments: argparse.Namespace) -> int:
    """Print the fields of a cell, its attempts, and the paths of its files."""
    run = plan_run(arguments)
    cell, layout = find_cell(run.plan, arguments.cell), run.layout
    attempts = {
        n: read_attempt(layout.attempt(cell.id, n)) for n in layout.attempts(cell.id)
    }
    if arguments.json:
        records = [record for found in attempts.values() for record in found]
        if not records:
            raise ValueError(f"{cell.id} has no record yet")
        print_json(records[-1])
        return OK
    job = find_jobs(run.plan, layout, Path()).get(cell.id)
    state = find_state(run.plan, layout, cell, job)
    reason = f": {state.reason}" if state.reason else ""
    print(f"{cell.id}\n  status    {state.status} {state.launches}{reason}")
    if state.where:
        print(f"  where     {state.where}")
    print(f"  hash      {cell.hash}")
    for key, value in cell.cell.to_dict().items():
        print(f"  {key:<16} {value}")
    for attempt, records in attempts.items():
        for record in records:
            window = max((r["window_s"] for r in record.get("ranks", [])), default=None)
            samples = record.get("samples", 0) * cell.cell.units_per_sample
            speed = f"{samples / window:.1f} {cell.cell.unit}/s" if window else ""
            print(
                f"  attempt {attempt} launch {record['launch']}: {record['status']} "
                f"{record['reason'] or speed}  ({record['started']})"
            )
    print(f"  records   {layout.records / cell.id}")
    print(f"  log       {layout.log(cell.id)}")
    print(f"  rerun     {how_to_rerun(arguments, cell.id)}")
    return OK
