"""The command `rankbench cells`."""

from __future__ import annotations

import argparse

from rankbench.commands._base import plan_run
from rankbench.commands._memory import (
    NOT_KNOWN,
    describe_estimate,
    estimate_cells,
    fit_batch,
)
from rankbench.commands._options import OK, command, print_json
from rankbench.project import find_pending, make_preview
from rankbench.say import say


@command(
    options="EXPERIMENT --override --site --only --memory --fit",
    examples=(
        "cells --only backend=gloo,mpi topology=1x2",
        "cells studies/lenet-mnist-workers.yaml --override laptop",
        "cells --site slurm_profile --json",
        "cells studies/gpt-scaling.yaml --memory",
    ),
    json_holds="each cell with its fields and the number of pending launches",
)
def list_cells(arguments: argparse.Namespace) -> int:
    """List the cells of the matrix, and why a cell cannot run on this site. Nothing
    is run. With --memory, also what the rank that needs most holds and sends in a step.
    """
    run = plan_run(arguments)
    found = {}
    if arguments.memory or arguments.fit:
        found = estimate_cells(run, run.chosen)
    batches = {}
    if arguments.fit:
        known = [cell for cell in run.chosen if "unknown" not in found[cell.id]]
        batches = {cell.id: fit_batch(run, cell) for cell in known}
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
                **({"memory": found[cell.id]} if found else {}),
                **({"largest_batch": batches.get(cell.id)} if arguments.fit else {}),
            }
            for cell in run.chosen
        ]
        print_json({"experiment": run.plan.name, "cells": cells})
        return OK
    for cell in run.chosen:
        note = f"  unsupported: {cell.infeasible}" if cell.infeasible else ""
        say(f"{cell.id}{note}")
        for line in describe_estimate(found[cell.id]) if found else ():
            say(f"    {line}")
        if cell.id in batches:
            say(f"    largest batch_size that fits: {batches[cell.id] or 'none'}")
    if found:
        say(NOT_KNOWN, aside=True)
    say(make_preview(run).lines()[0], aside=True)
    return OK
