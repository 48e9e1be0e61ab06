"""The command `rankbench status`."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rankbench.commands.base import (
    FINDING,
    OK,
    add_experiment,
    add_only,
    add_parser,
    how_to_rerun,
    plan_run,
    print_json,
)
from rankbench.project.status import find_jobs, find_state

ABOUT = """\
Print the state of every cell, also during a run: its launches, why it failed, its job
and hosts, its log, and the command that measures it again."""

EXAMPLES = """\
examples:
  rankbench status
  rankbench status --profile slurm_profile
  rankbench status --json

exit status: 0, 1 if a cell has failed, 2 on bad input"""


def add(commands: Any) -> None:
    """Add the command to the parser of `rankbench`."""
    parser = add_parser(
        commands,
        "status",
        show_status,
        summary="show the state of every cell",
        about=ABOUT,
        examples=EXAMPLES,
        json_holds="the state of each cell, its log, the command that reruns it",
    )
    add_experiment(parser)
    add_only(parser)


def show_status(arguments: argparse.Namespace) -> int:
    """Print one line per cell, three if it was started; return 1 if a cell failed."""
    run = plan_run(arguments)
    jobs = find_jobs(run.plan, run.layout, Path())
    states = {
        cell.id: find_state(run.plan, run.layout, cell, jobs.get(cell.id))
        for cell in run.chosen
    }
    if arguments.json:
        print_json(
            [
                {
                    "cell": cell,
                    **asdict(state),
                    "log": run.layout.log(cell) if state.where else None,
                    "rerun": how_to_rerun(arguments, cell),
                }
                for cell, state in states.items()
            ]
        )
    else:
        for cell, state in states.items():
            reason = f"  {state.reason}" if state.reason else ""
            print(f"{state.status:<12} {state.launches:>5}  {cell}{reason}")
            if state.where:
                print(f"{'':18}  {state.where}; log: {run.layout.log(cell)}")
                print(f"{'':18}  again: {how_to_rerun(arguments, cell)}")
    return FINDING if any(state.has_failed for state in states.values()) else OK
