"""The command `rankbench run`."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from typing import Any

from rankbench.commands._execute import execute, states_of
from rankbench.commands._table import print_table
from rankbench.commands.base import (
    OK,
    add_experiment,
    add_only,
    add_parser,
    argv_for,
    how_to_rerun,
    plan_run,
    print_json,
)
from rankbench.invocation import shown
from rankbench.project import Run

ABOUT = """\
Measure what an experiment still lacks, and write its table and plots. Snakemake does
it: its command is printed, and its output goes to a log. Run it again to continue after
an interruption: what was measured is kept."""

EXAMPLES = """\
examples:
  rankbench run
  rankbench run -n
  rankbench run --only strategy=ddp topology=1x2
  rankbench run --experiment studies/lenet-mnist-workers.yaml --override laptop
  rankbench run --profile slurm_profile -- --jobs 10
  rankbench run --json

exit status: 0 all is well, 1 a cell has failed, 2 bad input, 130 interrupted"""


def add(commands: Any) -> None:
    """Add it to the parser of `rankbench`."""
    parser = add_parser(
        commands,
        "run",
        measure,
        summary="measure an experiment, and print its table",
        about=ABOUT,
        examples=EXAMPLES,
        json_holds="the state of each cell; the progress goes to stderr",
    )
    add_experiment(parser)
    add_only(parser)
    parser.add_argument(
        "-n", "--dry-run", action="store_true", help="say what would run; write nothing"
    )
    parser.add_argument(
        "--verbose", action="store_true", help="show what Snakemake says, too"
    )
    parser.add_argument("--no-plots", action="store_true", help="only the tables")
    parser.add_argument(
        "snakemake",
        nargs="*",
        metavar="-- OPTION",
        help="options of Snakemake, after two dashes",
    )


def measure(arguments: argparse.Namespace) -> int:
    """Run Snakemake, show its progress, print the table."""
    run = plan_run(arguments, write=not arguments.dry_run)
    argv = argv_for(arguments, flags=arguments.snakemake)
    lines = run.preview().lines()
    if arguments.dry_run:
        print(*lines, f"$ {shown(argv)}", sep="\n")
        return OK
    print(*lines, sep="\n", file=sys.stderr)
    status = execute(run, argv, verbose=arguments.verbose)
    show_end(run, arguments)
    return status


def show_end(run: Run, arguments: argparse.Namespace) -> None:
    """The table, or as JSON the state of each cell."""
    if arguments.json:
        print_json(
            [
                {
                    "cell": cell,
                    **asdict(state),
                    "log": run.layout.log(cell) if state.where else None,
                    "rerun": how_to_rerun(arguments, cell),
                }
                for cell, state in states_of(run).items()
            ]
        )
    else:
        print_table(run.layout)
