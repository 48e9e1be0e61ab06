"""The command `rankbench prepare`."""

from __future__ import annotations

import argparse

from rankbench.commands._base import argv_for, plan_run, require_workflow
from rankbench.commands._execute import run_target
from rankbench.commands._options import command, print_json
from rankbench.project.jobs import data_files


@command(
    options="EXPERIMENT --override --site --only",
    examples=("prepare", "prepare studies/lenet-mnist-workers.yaml --json"),
    exits="0 all files exist, 1 a file could not be made, 2 bad input",
    json_holds="the files, and whether each exists",
)
def prepare(arguments: argparse.Namespace) -> int:
    """Make the data files that the cells of an experiment read. `rankbench run`
    makes them, too. Run this command first if the machine that measures has no
    network.
    """
    run = plan_run(arguments)
    require_workflow(run)
    status = run_target(argv_for(arguments, "prepare"))
    if arguments.json:
        files = data_files(run).values()
        print_json([{"file": str(f), "there": f.exists()} for f in files])
    return status
