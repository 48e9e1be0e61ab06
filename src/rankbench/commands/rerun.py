"""The command `rankbench rerun`."""

from __future__ import annotations

import argparse

from rankbench.cell import find_bases
from rankbench.commands._base import argv_for, plan_run, shift_experiment
from rankbench.commands._execute import execute, states_of
from rankbench.commands._options import FINDING, OK, command, print_result
from rankbench.commands.run import show_end
from rankbench.project.status import RERUN_WORDS, find_rerun
from rankbench.say import say


@command(
    options="EXPERIMENT CELLS --override --site "
    "--only --failed --stale --with-base --wait-quiet",
    examples=(
        "rerun ddp.gloo.1x2.convnet.digits --with-base",
        "rerun scaling.yaml ddp.gloo.1x2.convnet.digits",
        "rerun --failed --only backend=gloo",
        "rerun scaling.yaml --stale --site slurm_profile",
    ),
    exits="0 the cells are ok now, or none matched; 1 a cell is not; 2 bad input",
    json_holds="the state of each chosen cell; the progress goes to stderr",
)
def rerun_cells(arguments: argparse.Namespace) -> int:
    """Measure cells again, each as a new attempt, and write the table. Earlier
    attempts and other cells are not touched. Snakemake runs the jobs, as in
    `rankbench run`.
    """
    shift_experiment(arguments, "cells")
    words = [word for word in RERUN_WORDS if getattr(arguments, word)]
    if not (arguments.cells or words or arguments.only):
        raise ValueError("which cells? Give their ids, --failed, --stale or --only")
    run = plan_run(arguments)
    chosen = {cell.id for cell in run.chosen}
    found = find_rerun(run.plan, run.layout, [*arguments.cells, *words])
    wanted = [cell.id for cell in found if cell.id in chosen]
    if arguments.only and not words:
        wanted = [cell.id for cell in run.feasible]
        if not wanted:
            raise ValueError(f"none of these can run here: {run.chosen[0].infeasible}")
    if not wanted:
        said = f"nothing to measure again: no cell is {' or '.join(words)}"
        print_result(arguments, [], said)
        return OK
    bases = find_bases({one.id: one.cell for one in run.plan.feasible})
    if arguments.with_base:
        needed = [base for cell in wanted for base in bases.get(cell, ()) if base]
        wanted = list(dict.fromkeys([*wanted, *needed]))
    left = [cell for cell in bases.keys() - {*wanted} if {*bases[cell]} & {*wanted}]
    if left := sorted(filter(run.layout.attempts, left)):
        said = "these are unpaired until they are measured again, as their base is: "
        say(said + ", ".join(left), aside=True)
    arguments.rerun = ",".join(wanted)
    run = plan_run(arguments, probe=True)
    status = execute(run, argv_for(arguments), arguments)
    show_end(run, arguments)
    if status == OK and any(s.status != "ok" for s in states_of(run).values()):
        return FINDING
    return status
