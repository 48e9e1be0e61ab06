"""What the jobs of a run ask of Slurm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rankbench.launch.hosts.slurm_resources import (
    Resources,
    check_resources,
    job_resources,
    job_seconds,
)
from rankbench.launch.outcome.judge_gate import has_gate
from rankbench.matrix.site import SLURM
from rankbench.project.run import Run
from rankbench.record import read_json

# Differ between cells; all other resources are facts of the site.
OF_A_CELL = (
    *("nodes", "tasks", "cpus_per_task", "runtime"),
    *("gres", "mpi", "slurm_extra"),
)


def rule_resources(run: Run) -> dict[str, Any]:
    """Return the resources of `rule cell`: values, and functions of its wildcards.

    Snakemake calls each function several times for each job. Twelve of them doubled the
    time of a dry run, so there are as few as possible: none without Slurm.
    """
    functions: dict[str, Any] = {}
    if run.plan.site["scheduler"] == SLURM:
        functions = {name: _resource_function(run, name) for name in OF_A_CELL}
    return {**host_resources(run), **functions}


def _resource_function(run: Run, name: str) -> Callable[[Any], int | str | None]:
    # None leaves the resource out.
    return lambda wildcards: cell_resources(run, wildcards.cell).get(name)


def cell_resources(run: Run, cell_id: str) -> Resources:
    """What the job of a cell asks of Slurm."""
    # Snakemake asks again for each resource.
    if cell_id not in run.resources:
        planned = run.plan.cells[cell_id]
        seconds = job_seconds(
            run.plan.experiment["launches"] + extra_launches(run, cell_id),
            time_limit=run.plan.experiment["time_limit"],
            mean=launch_seconds(run, cell_id),
        )
        run.resources[cell_id] = job_resources(
            planned.cell, planned.shape, run.plan.site, seconds=seconds
        )
    return run.resources[cell_id]


def host_resources(run: Run) -> Resources:
    """What the job that looks at the hosts of this site asks of Slurm."""
    return check_resources(run.plan.site)


def extra_launches(run: Run, cell_id: str, *, measures: bool = True) -> int:
    """Launches of a cell that are not measured: its gate and its profile.

    Args:
        run: the plan.
        cell_id: the cell.
        measures: whether there are launches for the gate to check.
    """
    experiment = run.plan.experiment
    gate = experiment["gate"] and measures and has_gate(run.plan.cells[cell_id].cell)
    return int(gate) + int(experiment["profile"])


def launch_seconds(run: Run, cell_id: str) -> float | None:
    """Mean seconds of a cell's launches in its latest records; None without any."""
    summary = run.layout.summary(cell_id)
    if not summary.exists():
        return None
    mean: float | None = read_json(summary)["launch_seconds"]
    return mean
