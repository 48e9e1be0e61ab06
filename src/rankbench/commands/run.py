"""The command `rankbench run`."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from typing import Any

from rankbench.commands._base import (
    argv_for,
    describe_states,
    of_experiment,
    plan_run,
)
from rankbench.commands._execute import execute, run_target, states_of
from rankbench.commands._memory import (
    NOT_KNOWN,
    Estimate,
    describe_estimate,
    estimate_cells,
    fit_batch,
)
from rankbench.commands._options import OK, command, print_json, print_result
from rankbench.commands._script import make_experiment
from rankbench.commands._terminal import print_results
from rankbench.invocation import rankbench_command, read_invocation, shown
from rankbench.project.jobs import data_files
from rankbench.project.preview import Preview
from rankbench.project.run import Run
from rankbench.record import read_json
from rankbench.say import say

# Options that rankbench passes to Snakemake itself -> the option of rankbench to use
# instead. Snakemake takes only the last --config.
_CONFIG = "EXPERIMENT, --override, --only or --no-plots"
_OWN = {
    "--config": _CONFIG,
    "-C": _CONFIG,
    "--configfile": "EXPERIMENT",
    "--configfiles": "EXPERIMENT",
    "--profile": "--site",
}


@command(
    options="MEASURED --override --site --only --dry-run --memory --fit "
    "--prepare --next --wait-quiet --no-plots",
    examples=(
        "run -n",
        "run studies/gpt-scaling.yaml -n --memory",
        "run scaling.yaml --only strategy=ddp topology=1x2",
        "run --site slurm_profile -- --jobs 10",
        "run --next fastest",
        "run train.py --batch-size 32",
        "run --prepare --json",
    ),
    exits="0 all is well, 1 a cell has failed, 2 bad input, 130 interrupted",
    json_holds="the state of each cell (with -n: the cells and what would run); the "
    "progress goes to stderr",
)
def measure(arguments: argparse.Namespace) -> int:
    """Measure what is missing or stale of an experiment, and write its table and
    plots; for a training script, with its arguments behind it, write an experiment
    first. Snakemake runs the jobs; its output goes to a log, and options for it follow
    after two dashes. Finished launches are kept: to continue, run the command again.
    """
    looks = arguments.dry_run or arguments.memory or arguments.fit
    check_flags(arguments)
    if (arguments.experiment or "").endswith(".py"):
        arguments.experiment = make_experiment(arguments)
        if arguments.experiment is None:
            return OK
    if arguments.prepare:
        run = plan_run(arguments)
        status = run_target(run, arguments, "prepare")
        if arguments.json:
            files = data_files(run).values()
            print_json([{"file": str(f), "there": f.exists()} for f in files])
        return status
    if arguments.next is not None:
        question = arguments.next or "fastest"
        arguments.more = _read_next(arguments, question)
        if not arguments.more:
            say(f"nothing to launch: no launch would settle {question}")
            return OK
    run = plan_run(arguments, write=not looks, probe=not looks)
    argv = argv_for(arguments, *arguments.snakemake)
    preview = Preview(run)
    if looks:
        return _look(arguments, run, preview, argv)
    say(*preview.lines(), aside=True)
    status = execute(run, argv, arguments)
    show_end(run, arguments)
    return status


def _look(
    arguments: argparse.Namespace, run: Run, preview: Preview, argv: Sequence[str]
) -> int:
    """Print what would run, and what is estimated of the cells."""
    estimates: dict[str, Estimate] = {}
    if arguments.memory or arguments.fit:
        say(f"estimating {len(run.chosen)} cells, seconds each", aside=True)
        estimates = estimate_cells(run, run.chosen)
    batches: dict[str, int | None] = {}
    if arguments.fit:
        known = [cell for cell in run.chosen if "unknown" not in estimates[cell.id]]
        for cell in known:
            say(f"looking for the largest batch_size: {cell.id}", aside=True)
            batches[cell.id] = fit_batch(run, cell)
    cells, lines = [], preview.lines(measured=True)
    for cell in run.chosen:
        about: dict[str, Any] = {
            "cell": cell.id,
            "fields": cell.cell.to_dict(),
            "unsupported": cell.infeasible,
            "marks": cell.marks,
            "image": cell.image,
            "launches_to_come": preview.pending.get(cell.id, 0),
        }
        if estimates:
            about["memory"] = estimates[cell.id]
            said = describe_estimate(estimates[cell.id])
            lines += [cell.id, *(f"    {line}" for line in said)]
        if arguments.fit:
            largest = about["largest_batch"] = batches.get(cell.id)
            lines.append(f"    largest batch_size that fits: {largest or 'none'}")
        cells.append(about)
    lines += [NOT_KNOWN] if estimates else []
    facts = {"experiment": run.plan.name, "command": shown(argv), **preview.facts()}
    text = "\n".join([*lines, f"$ {shown(argv)}"])
    print_result(arguments, {**facts, "cells": cells}, text)
    return OK


def _read_next(arguments: argparse.Namespace, question: str) -> str:
    """Return the launches that settle a question, as `project.open_run` takes them.

    Raises:
        ValueError: nothing was measured yet, or --only is given, too.
    """
    if arguments.only:
        raise ValueError("--next and --only: give one of them, not both")
    path = plan_run(arguments).layout.answer("json")
    workloads = read_json(path).get("workloads") if path.exists() else ()
    if not workloads:
        said = "has no numbers" if path.exists() else "is missing"
        raise ValueError(f"{path} {said}: run the experiment first, without --next")
    wanted: dict[str, int] = {}
    for workload in workloads:
        for planned in workload.get("next", ()):
            if planned["settles"] == question:
                wanted |= {step["cell"]: step["launches"] for step in planned["cells"]}
    return " ".join(f"{cell}={launches}" for cell, launches in wanted.items())


def check_flags(arguments: argparse.Namespace) -> None:
    """Refuse options for Snakemake that would be lost, or would measure nothing.

    Raises:
        ValueError: an option is refused; the message says which option to use.
    """
    flags: Sequence[str] = arguments.snakemake
    if flags and not flags[0].startswith("-"):
        how = rankbench_command("rerun", **of_experiment(arguments), cells=flags[:1])
        raise ValueError(
            f"{flags[0]}: only options for Snakemake may follow --; "
            f"`{how}` measures a cell again"
        )
    for flag in flags:
        if instead := _OWN.get(flag.partition("=")[0]):
            raise ValueError(f"{flag} after --: give {instead} before the -- instead")
    if not flags:
        return
    try:
        invocation = read_invocation(flags)
    except SystemExit:
        said = f"Snakemake does not know these options: {shlex.join(flags)}"
        raise ValueError(said) from None
    if invocation.passive:
        raise ValueError(
            f"{shlex.join(flags)} measures nothing: give -n before the --, or run "
            "snakemake itself"
        )


def show_end(run: Run, arguments: argparse.Namespace) -> None:
    """Print the table, or the state of each cell as JSON."""
    if arguments.json:
        print_json(describe_states(run, states_of(run), arguments))
    else:
        print_results(run.layout)
