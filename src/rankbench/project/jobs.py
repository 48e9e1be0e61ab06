"""Jobs that measure several cells: their cells, rounds and resources."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rankbench.cell import Topology
from rankbench.launch.hosts.slurm_resources import (
    Resources,
    job_resources,
    job_seconds,
    launch_seconds,
)
from rankbench.matrix.sharing import group_cells, is_apart
from rankbench.plan import PlannedCell
from rankbench.project.requests import find_pending
from rankbench.project.resources import count_beside, mean_seconds
from rankbench.project.run import Run
from rankbench.record import read_json
from rankbench.schedulers import scheduler_of


@dataclass(frozen=True, slots=True)
class SharedJob:
    """A job that measures several cells.

    Attributes:
        cells: their ids.
        rounds: at most so many; None for as many as the cells need.
        after: name of the job that measures the rounds before these, or None.
    """

    cells: Sequence[str]
    rounds: int | None = None
    after: str | None = None


def shared_jobs(run: Run) -> dict[str, SharedJob]:
    """Return the jobs of a run that measure several cells, by name.

    Raises:
        ValueError: a job would take longer than `max_job_minutes`, or the budget is
            smaller than one round.
    """
    if run.shared is None:
        run.shared = _make_jobs(run)
    found: dict[str, SharedJob] = run.shared
    return found


def read_jobs(run: Run) -> None:
    """Take the jobs from the file in which the main process wrote them."""
    jobs = read_json(run.layout.agenda).get("jobs", {})
    run.shared = {name: SharedJob(**job) for name, job in jobs.items()}


def describe_jobs(run: Run) -> dict[str, Any]:
    """Return the jobs as JSON values."""
    return {name: asdict(job) for name, job in shared_jobs(run).items()}


def last_jobs(run: Run) -> dict[str, str]:
    """Return the job after which each cell is measured: id of the cell -> name."""
    return {cell: name for name, job in shared_jobs(run).items() for cell in job.cells}


def _make_jobs(run: Run) -> dict[str, SharedJob]:
    pending = find_pending(run)
    cells = [cell for cell in run.feasible if cell.id in pending]
    groups = group_cells(run.plan, cells)
    _check_budget(run, cells)
    found: dict[str, SharedJob] = {}
    for name, group in groups.items():
        ids = [cell.id for cell in group]
        rounds = _rounds_of_a_job(run, name, group)
        if rounds is None:
            found[name] = SharedJob(ids)
            continue
        before = None
        for part in range(math.ceil(_most_launches(run, ids) / rounds)):
            found[f"{name}.{part + 1}"] = SharedJob(ids, rounds, before)
            before = f"{name}.{part + 1}"
    return found


def _most_launches(run: Run, cells: Sequence[str]) -> int:
    return max(run.rule(cell).at_most for cell in cells)


def _rounds_of_a_job(run: Run, name: str, cells: Sequence[PlannedCell]) -> int | None:
    """Return how many rounds fit into a job; None if all do."""
    minutes = run.plan.site["max_job_minutes"]
    if not scheduler_of(run.plan.site).has_queue or minutes is None:
        return None
    limit = run.plan.experiment["time_limit"]
    ids = [cell.id for cell in cells]
    if _seconds(run, ids, _most_launches(run, ids)) <= 60 * minutes:
        return None
    round_ = sum(launch_seconds(mean_seconds(run, cell), limit) for cell in ids)
    fixed = _seconds(run, ids, 0) + limit
    rounds = int((60 * minutes - fixed) // round_)
    if rounds < 1:
        needed = math.ceil((fixed + round_) / 60)
        raise ValueError(
            f"max_job_minutes: {minutes}: one round of the {len(ids)} cells of the job "
            f"{name} may take {needed} minutes (time_limit: {limit:g} s): raise "
            "max_job_minutes in the site file, lower time_limit, or let fewer cells "
            "share a job (allocation: topology or cell)"
        )
    return rounds


def _seconds(run: Run, cells: Sequence[str], rounds: int) -> float:
    """Return the seconds that a job may take."""
    return job_seconds(
        [
            (rounds + count_beside(run, cell, measures=True), mean_seconds(run, cell))
            for cell in cells
        ],
        time_limit=run.plan.experiment["time_limit"],
    )


def shared_resources(run: Run, name: str) -> Resources:
    """Return the resources that a shared job requests from Slurm."""
    if name not in run.resources:
        job = shared_jobs(run)[name]
        cells = [run.plan.cells[cell] for cell in job.cells]
        rounds = job.rounds or _most_launches(run, job.cells)
        run.resources[name] = job_resources(
            [(cell.cell, cell.shape) for cell in cells],
            run.plan.site,
            seconds=_seconds(run, job.cells, rounds),
        )
    return run.resources[name]


def apart(run: Run) -> list[str]:
    """Return pending cells that cannot share a job although others do."""
    if run.plan.experiment["allocation"] == "cell":
        return []
    pending = find_pending(run)
    return [c.id for c in run.feasible if c.id in pending and is_apart(c)]


def held_seconds(run: Run, allocation: str) -> float:
    """Return device-seconds of the pending launches, with idle devices of a job.

    Args:
        run: the run.
        allocation: a value of the key.
    """
    limit = run.plan.experiment["time_limit"]
    pending = find_pending(run)
    cells = [cell for cell in run.feasible if cell.id in pending]
    groups: dict[str, list[PlannedCell]] = {}
    for cell in cells:
        names = {"cell": cell.id, "topology": cell.cell.topology, "experiment": ""}
        groups.setdefault(names[allocation], []).append(cell)
    total = 0.0
    for group in groups.values():
        topologies = [Topology.parse(cell.cell.topology) for cell in group]
        hosts = max(one.nodes for one in topologies)
        devices = hosts * max(one.devices_per_node for one in topologies)
        total += devices * sum(
            (pending[cell.id] + count_beside(run, cell.id, measures=True))
            * launch_seconds(mean_seconds(run, cell.id), limit)
            for cell in group
        )
    return total


def _check_budget(run: Run, cells: Sequence[PlannedCell]) -> None:
    """Check that the budget suffices for one round.

    Raises:
        ValueError: it does not; the message names the key.
    """
    budget, limit = run.plan.experiment["budget"], run.plan.experiment["time_limit"]
    if budget is None or not cells:
        return
    needed, unknown = 0.0, 0
    for cell in cells:
        mean = mean_seconds(run, cell.id)
        unknown += mean is None
        devices = Topology.parse(cell.cell.topology).devices
        needed += devices * (limit if mean is None else mean)
    if needed > budget:
        raise ValueError(
            f"budget: {budget / 3600:.3g} device-hours: one round of {len(cells)} "
            f"cells may take {needed / 3600:.3g} ({unknown} were never measured and "
            f"count with time_limit: {limit:g} s): raise budget, lower time_limit, or "
            "choose fewer cells (only)"
        )
