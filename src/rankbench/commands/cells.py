"""The command `rankbench cells`."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from rankbench.commands.base import (
    OK,
    add_experiment,
    add_only,
    add_parser,
    plan_run,
    print_json,
)
from rankbench.project import find_pending, make_preview

ABOUT = """\
List the cells of the matrix, and why a cell cannot run on this site. Nothing is run."""

EXAMPLES = """\
examples:
  rankbench cells
  rankbench cells --only backend=gloo,mpi topology=1x2
  rankbench cells --experiment studies/lenet-mnist-workers.yaml --override laptop
  rankbench cells --profile slurm_profile --json

exit status: 0, or 2 on bad input"""


def add(commands: Any) -> None:
    """Add the command to the parser of `rankbench`."""
    parser = add_parser(
        commands,
        "cells",
        list_cells,
        summary="list the cells, and why some cannot run here",
        about=ABOUT,
        examples=EXAMPLES,
        json_holds="each cell with its fields and the number of pending launches",
    )
    add_experiment(parser)
    add_only(parser)


def list_cells(arguments: argparse.Namespace) -> int:
    """Print the cells, and a summary of a run."""
    run = plan_run(arguments)
    if arguments.json:
        pending = find_pending(run)
        cells = [
            {
                "cell": cell.id,
                "fields": cell.cell.to_dict(),
                "unsupported": cell.infeasible,
                "marks": cell.marks,
                "image": cell.image,
                "launches_to_come": pending.get(cell.id, 0),
            }
            for cell in run.chosen
        ]
        print_json({"experiment": run.plan.name, "cells": cells})
        return OK
    for cell in run.chosen:
        note = f"  unsupported: {cell.infeasible}" if cell.infeasible else ""
        print(f"{cell.id}{note}")
    print(make_preview(run).lines()[0], file=sys.stderr)
    return OK
