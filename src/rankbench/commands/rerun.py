"""The command `rankbench rerun`."""

from __future__ import annotations

import argparse
from typing import Any

from rankbench.cell import find_base
from rankbench.commands._execute import execute, states_of
from rankbench.commands.base import (
    FINDING,
    OK,
    add_experiment,
    add_only,
    add_parser,
    argv_for,
    how_to_continue,
    plan_run,
    print_json,
)
from rankbench.commands.run import show_end
from rankbench.project.status import cells_to_rerun

ABOUT = """\
Measure cells again, each as a new attempt, and write the table. Earlier attempts and
other cells are not touched. Snakemake runs the jobs, as in `rankbench run`."""

EXAMPLES = """\
examples:
  rankbench rerun ddp.gloo.1x2.convnet.digits
  rankbench rerun --with-base ddp.gloo.1x2.convnet.digits
  rankbench rerun --failed
  rankbench rerun --failed --only backend=gloo
  rankbench rerun --stale --experiment studies/lenet-mnist-workers.yaml
  rankbench rerun --profile slurm_profile ddp.gloo.2x1.convnet.digits

exit status: 0 the cells are ok now (or none matched), 1 a cell is not, 2 bad input"""


def add(commands: Any) -> None:
    """Add the command to the parser of `rankbench`."""
    parser = add_parser(
        commands,
        "rerun",
        rerun_cells,
        summary="measure cells again, and write the table",
        about=ABOUT,
        examples=EXAMPLES,
        json_holds="the state of each chosen cell; the progress goes to stderr",
    )
    add_experiment(parser)
    add_only(parser)
    parser.add_argument(
        "--verbose", action="store_true", help="show the output of Snakemake, too"
    )
    parser.add_argument(
        "--with-base",
        action="store_true",
        help="also the cells that speedups are relative to, in the same rounds",
    )
    parser.add_argument("cell", nargs="*", help="id of a cell (`rankbench cells`)")
    parser.add_argument("--failed", action="store_true", help="all failed cells")
    parser.add_argument(
        "--stale",
        action="store_true",
        help="all cells whose definition or image has changed since",
    )


def rerun_cells(arguments: argparse.Namespace) -> int:
    """Measure cells again, with Snakemake like any run; return the exit status."""
    wanted = _choose(arguments)
    if not wanted:
        if arguments.json:
            print_json([])
        else:
            print(
                "nothing to measure again: no cell is", " or ".join(_words(arguments))
            )
        return OK
    if arguments.with_base:
        wanted = _add_bases(arguments, wanted)
    cells = ",".join(wanted)
    run = plan_run(arguments, rerun=cells)
    argv = argv_for(arguments, rerun=cells)
    rest = how_to_continue(arguments)
    status = execute(run, argv, rest=rest, verbose=arguments.verbose)
    show_end(run, arguments)
    if status == OK and any(s.status != "ok" for s in states_of(run).values()):
        return FINDING
    return status


def _add_bases(arguments: argparse.Namespace, wanted: list[str]) -> list[str]:
    """Return the cells and their bases, without repetition."""
    run = plan_run(arguments, rerun=",".join(wanted))
    cells = {planned.id: planned.cell for planned in run.plan.feasible}
    chosen = [planned.id for planned in run.rerun]
    bases = [base for one in chosen if (base := find_base(one, cells))]
    return list(dict.fromkeys([*chosen, *bases]))


def _words(arguments: argparse.Namespace) -> list[str]:
    return [word for word in ("failed", "stale") if getattr(arguments, word)]


def _choose(arguments: argparse.Namespace) -> list[str]:
    """Return the cells to measure again, as `project.open_run` takes them.

    Raises:
        ValueError: no option chooses cells, or two options exclude each other.
    """
    words = _words(arguments)
    if arguments.cell and arguments.only:
        raise ValueError("ids of cells and --only: give one of them, not both")
    if arguments.cell:
        return [*arguments.cell, *words]
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
