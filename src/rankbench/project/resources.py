"""Resources that the jobs of a run request from Slurm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rankbench.launch.hosts.slurm_resources import (
    Resources,
    check_resources,
    job_resources,
    job_seconds,
)
from rankbench.launch.process.judge_gate import has_gate
from rankbench.project.run import Run
from rankbench.record import read_json
from rankbench.schedulers import scheduler_of

# These resources differ between cells; all others are facts of the site.
OF_A_CELL = (
    *("nodes", "tasks", "cpus_per_task", "runtime"),
    *("gres", "mpi", "slurm_extra"),
)


def rule_resources(
    run: Run, wildcard: str, find: Callable[[Run, str], Resources]
) -> dict[str, Any]:
    """Return the resources of a rule: values, and functions of its wildcards.

    Snakemake calls each function several times per job: twelve functions doubled the
    time of a dry run. So there are as few as possible, and none without a queue.

    Args:
        run: the run.
        wildcard: that names what the rule measures.
        find: the resources of its value.
    """
    functions: dict[str, Any] = {}
    if scheduler_of(run.plan.site).has_queue:
        functions = {
            name: _resource_function(run, wildcard, find, name) for name in OF_A_CELL
        }
    return {**host_resources(run), **functions}


def _resource_function(
    run: Run, wildcard: str, find: Callable[[Run, str], Resources], name: str
) -> Callable[[Any], int | str | None]:
    # None omits the resource.
    return lambda wildcards: find(run, wildcards[wildcard]).get(name)


def cell_resources(run: Run, cell_id: str) -> Resources:
    """Return the resources that the job of a cell requests from Slurm."""
    # Snakemake asks again for each resource, so they are computed once.
    if cell_id not in run.resources:
        planned = run.plan.cells[cell_id]
        launches = run.rule(cell_id).at_most + count_beside(run, cell_id)
        seconds = job_seconds(
            [(launches, mean_seconds(run, cell_id))],
            time_limit=run.plan.experiment["time_limit"],
        )
        run.resources[cell_id] = job_resources(
            [(planned.cell, planned.shape)], run.plan.site, seconds=seconds
        )
    return run.resources[cell_id]


def host_resources(run: Run) -> Resources:
    """Return the resources that the job for the site check requests from Slurm."""
    return check_resources(run.plan.site)


def count_beside(run: Run, cell_id: str, *, measures: bool = True) -> int:
    """Return the number of a cell's launches that are not measured: gate and profile.

    Args:
        run: the plan.
        cell_id: the cell.
        measures: whether the cell has launches for the gate to check.
    """
    experiment = run.plan.experiment
    gate = experiment["gate"] and measures and has_gate(run.plan.cells[cell_id].cell)
    return int(gate) + int(experiment["profile"])


def mean_seconds(run: Run, cell_id: str) -> float | None:
    """Return the mean seconds of a cell's latest launches; None without a summary."""
    summary = run.layout.summary(cell_id)
    if not summary.exists():
        return None
    mean: float | None = read_json(summary)["launch_seconds"]
    return mean
