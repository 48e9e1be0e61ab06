"""The command `rankbench rerun`."""

from __future__ import annotations

import argparse

from rankbench.cell import find_bases
from rankbench.commands._base import (
    argv_for,
    plan_run,
    shift_experiment,
)
from rankbench.commands._execute import execute, states_of
from rankbench.commands._options import FINDING, OK, command, print_result
from rankbench.commands.run import show_end
from rankbench.project.status import RERUN_WORDS, cells_to_rerun


@command(
    options="EXPERIMENT CELLS --override --site "
    "--only --failed --stale --with-base --wait-quiet --verbose",
    examples=(
        "rerun ddp.gloo.1x2.convnet.digits --with-base",
        "rerun scaling.yaml ddp.gloo.1x2.convnet.digits",
        "rerun --failed --only backend=gloo",
        "rerun scaling.yaml --stale --site slurm_profile",
    ),
    exits="0 the cells are ok now (or none matched), 1 a cell is not, 2 bad input",
    json_holds="the state of each chosen cell; the progress goes to stderr",
)
def rerun_cells(arguments: argparse.Namespace) -> int:
    """Measure cells again, each as a new attempt, and write the table. Earlier
    attempts and other cells are not touched. Snakemake runs the jobs, as in
    `rankbench run`.
    """
    shift_experiment(arguments, "cells")
    words = [word for word in RERUN_WORDS if getattr(arguments, word)]
    wanted = _choose(arguments, words)
    if not wanted:
        said = f"nothing to measure again: no cell is {' or '.join(words)}"
        print_result(arguments, [], said)
        return OK
    if arguments.with_base:
        arguments.rerun = ",".join(wanted)
        run = plan_run(arguments)
        feasible = {planned.id: planned.cell for planned in run.plan.feasible}
        chosen = [planned.id for planned in run.rerun]
        bases = find_bases(feasible)
        needed = [base for cell in chosen for base in bases.get(cell, ()) if base]
        wanted = list(dict.fromkeys([*chosen, *needed]))
    arguments.rerun = ",".join(wanted)
    run = plan_run(arguments, probe=True)
    status = execute(run, argv_for(arguments), arguments)
    show_end(run, arguments)
    if status == OK and any(s.status != "ok" for s in states_of(run).values()):
        return FINDING
    return status


def _choose(arguments: argparse.Namespace, words: list[str]) -> list[str]:
    """Return the cells to measure again, as `project.open_run` takes them.

    Raises:
        ValueError: no option chooses cells, or two options exclude each other.
    """
    if arguments.cells and arguments.only:
        raise ValueError("ids of cells and --only: give one of them, not both")
    if arguments.cells:
        return [*arguments.cells, *words]
    if not words and not arguments.only:
        raise ValueError("which cells? Give their ids, --failed, --stale or --only")
    run = plan_run(arguments)
    if not words:
        if not run.feasible:
            raise ValueError(f"none of these can run here: {run.chosen[0].infeasible}")
        return [cell.id for cell in run.feasible]
    chosen = {cell.id for cell in run.chosen}
    found = {
        cell.id
        for word in words
        for cell in cells_to_rerun(run.plan, run.layout, word)
        if cell.id in chosen
    }
    # A word is shorter than the ids that it stands for.
    return sorted(found) if arguments.only or not found else words
