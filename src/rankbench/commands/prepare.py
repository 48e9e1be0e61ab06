"""The command `rankbench prepare`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rankbench.commands._execute import run_target
from rankbench.commands.base import (
    add_experiment,
    add_only,
    add_parser,
    argv_for,
    plan_run,
    print_json,
    require_workflow,
)
from rankbench.project.inputs import data_files

ABOUT = """\
Make the data files that the cells of an experiment read. `rankbench run` makes them,
too. Run this command first if the machine that measures has no network."""

EXAMPLES = """\
examples:
  rankbench prepare
  rankbench prepare --experiment studies/lenet-mnist-workers.yaml --json

exit status: 0 all files exist, 1 a file could not be made, 2 bad input"""


def add(commands: Any) -> None:
    """Add the command to the parser of `rankbench`."""
    parser = add_parser(
        commands,
        "prepare",
        prepare,
        summary="make the data files of an experiment",
        about=ABOUT,
        examples=EXAMPLES,
        json_holds="the files, and whether each exists",
    )
    add_experiment(parser)
    add_only(parser)


def prepare(arguments: argparse.Namespace) -> int:
    """Make the data files with Snakemake; return the exit status."""
    run = plan_run(arguments)
    require_workflow(run)
    status = run_target(argv_for(arguments, targets=["prepare"]))
    if arguments.json:
        files = data_files(run)
        print_json([{"file": f, "there": Path(f).exists()} for f in files])
    return status
