"""The command `rankbench status`."""

from __future__ import annotations

import argparse

from rankbench.commands._base import describe_states, open_cells
from rankbench.commands._options import FINDING, OK, command, print_json
from rankbench.project.status import State, find_state
from rankbench.record import explain_damage
from rankbench.say import say


@command(
    options="WHAT --override --site --only",
    examples=(
        "status",
        "status scaling.yaml --site slurm_profile",
        "status results/quickstart/results.tar.zst --json",
    ),
    exits="0, 1 if a cell has failed, 2 on bad input",
    json_holds="the state of each cell, its log, the command that reruns it",
)
def show_status(arguments: argparse.Namespace) -> int:
    """Print the state of every cell, also during a run: its launches, why it
    failed, its job and hosts, its log, and the command that measures it again. A
    result folder or a bundle needs no experiment; then only its records count, and
    no queue.
    """
    with open_cells(arguments) as (run, jobs):
        states = {
            cell.id: State("stale", "", explain_damage(damage, run.layout.root), "")
            if (damage := arguments.damaged.get(cell.id))
            else find_state(run.plan, run.layout, cell, jobs.get(cell.id))
            for cell in run.chosen
        }
        rows = describe_states(run, states, arguments)
    if arguments.json:
        print_json(rows)
    else:
        for row in rows:
            reason = f"  {row['reason']}" if row["reason"] else ""
            say(f"{row['status']:<12} {row['launches']:>5}  {row['cell']}{reason}")
            if row["where"]:
                say(f"{'':18}  {row['where']}; log: {row['log']}")
                say(f"{'':18}  again: {row['rerun']}")
    return FINDING if any(state.has_failed for state in states.values()) else OK
