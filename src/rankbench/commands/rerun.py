"""The command `rankbench rerun`."""

from __future__ import annotations

import argparse
from typing import Any

from rankbench.commands._execute import execute, states_of
from rankbench.commands.base import (
    FINDING,
    OK,
    add_experiment,
    add_parser,
    argv_for,
    plan_run,
    print_json,
)
from rankbench.commands.run import show_end
from rankbench.status import cells_to_rerun

ABOUT = """\
Measure cells again, each as a new attempt, and write the table. What was measured
before is kept. Snakemake does it, as in a run of the whole matrix; other cells are not
touched."""

EXAMPLES = """\
examples:
  rankbench rerun ddp.gloo.1x2.convnet.digits
  rankbench rerun --failed
  rankbench rerun --stale --experiment studies/lenet-mnist-workers.yaml
  rankbench rerun --profile slurm_profile ddp.gloo.2x1.convnet.digits

exit status: 0 the cells are ok now (or there were none), 1 one is not, 2 bad input"""


def add(commands: Any) -> None:
    """Add it to the parser of `rankbench`."""
    parser = add_parser(
        commands,
        "rerun",
        rerun_cells,
        summary="measure cells again, and the table",
        about=ABOUT,
        examples=EXAMPLES,
        json_holds="the state of each of the cells; the run itself goes to stderr",
    )
    add_experiment(parser)
    parser.add_argument(
        "--verbose", action="store_true", help="show what Snakemake says, too"
    )
    parser.add_argument("cell", nargs="*", help="id of a cell (`rankbench cells`)")
    parser.add_argument("--failed", action="store_true", help="all that have failed")
    parser.add_argument(
        "--stale",
        action="store_true",
        help="all that were measured as another cell, or in another image",
    )


def rerun_cells(arguments: argparse.Namespace) -> int:
    """Measure cells again: by Snakemake, so that there is one way to do it."""
    words = [word for word in ("failed", "stale") if getattr(arguments, word)]
    wanted = [*arguments.cell, *words]
    if not wanted:
        raise ValueError("which cells? Give their ids, --failed or --stale")
    if words == wanted:
        run = plan_run(arguments)
        if not any(cells_to_rerun(run.plan, run.layout, word) for word in words):
            if arguments.json:
                print_json([])
            else:
                print(f"nothing to measure again: no cell is {' or '.join(words)}")
            return OK
    cells = ",".join(wanted)
    run = plan_run(arguments, rerun=cells)
    argv = argv_for(arguments, rerun=cells)
    status = execute(run, argv, verbose=arguments.verbose)
    show_end(run, arguments)
    if status == OK and any(s.status != "ok" for s in states_of(run).values()):
        return FINDING
    return status
