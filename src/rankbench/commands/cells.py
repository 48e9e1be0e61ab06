"""The command `rankbench cells`."""

from __future__ import annotations

import argparse
import sys

from rankbench.commands._base import plan_run
from rankbench.commands._options import OK, command, print_json
from rankbench.project import find_pending, make_preview


@command(
    place=("measure", 1),
    summary="list the cells, and why some cannot run here",
    options="EXPERIMENT --override --site --only",
    examples=(
        "cells --only backend=gloo,mpi topology=1x2",
        "cells studies/lenet-mnist-workers.yaml --override laptop",
        "cells --site slurm_profile --json",
    ),
    json_holds="each cell with its fields and the number of pending launches",
)
def list_cells(arguments: argparse.Namespace) -> int:
    """List the cells of the matrix, and why a cell cannot run on this site. Nothing
    is run.
    """
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
