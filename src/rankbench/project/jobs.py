"""The jobs of a run: each measures a group of cells, most often of one.

Also which launches are pending, and what a job requests from Slurm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rankbench.launch.hosts.slurm import find_time_limit
from rankbench.launch.hosts.slurm_resources import (
    Resources,
    job_resources,
    job_seconds,
    launch_seconds,
)
from rankbench.launch.job.requests import read_request
from rankbench.launch.launchers import find_launcher, is_array
from rankbench.launch.process.judge_gate import has_gate
from rankbench.matrix.plan import CELL, EXPERIMENT, TOPOLOGY
from rankbench.plan import PlannedCell
from rankbench.project.run import Job, Run
from rankbench.record import read_json
from rankbench.schedulers import scheduler_of
from rankbench.stopping import BUDGET

ON_THIS_MACHINE = "this-machine"


def find_pending(run: Run) -> dict[str, int]:
    """Return the number of pending launches of each chosen cell not measured yet."""
    again = {cell.id for cell in run.rerun}
    found = {}
    for cell in run.feasible:
        if cell.id in again or not _is_measured(run, cell.id):
            found[cell.id] = run.rule(cell.id).at_most
        elif cell.id in run.more:
            measured = read_json(run.layout.summary(cell.id))["launches_ok"]
            if run.more[cell.id] > measured:
                found[cell.id] = run.more[cell.id] - measured
        elif run.plan.experiment["profile"]:
            request = read_request(run.layout, cell.id)
            if request is None or not request.profile:
                found[cell.id] = 0
    return found


def _is_measured(run: Run, cell_id: str) -> bool:
    """Return whether the summary of the cell is newer than its request.

    A cell that the budget ended is not, once the experiment has another budget.
    """
    summary, request = run.layout.summary(cell_id), run.layout.request(cell_id)
    try:
        if summary.stat().st_mtime < request.stat().st_mtime:
            return False
    except FileNotFoundError:
        return False
    return not has_new_budget(run, cell_id)


def has_new_budget(run: Run, cell_id: str) -> bool:
    """Return whether the budget ended the launches of a cell, and is another now."""
    summary = read_json(run.layout.summary(cell_id))
    why = (summary.get("enough") or (0, ""))[1]
    new = summary.get("budget") != run.plan.experiment["budget"]
    return new and str(why).startswith(BUDGET)


def jobs_of(run: Run) -> dict[str, Job]:
    """Return the jobs that measure the pending cells, by name.

    Raises:
        ValueError: a job would take longer than `max_job_minutes`, or the budget is
            smaller than one round.
    """
    if run.jobs is None:
        run.jobs = _make_jobs(run)
    return run.jobs


def _make_jobs(run: Run) -> dict[str, Job]:
    pending = find_pending(run)
    cells = [cell for cell in run.feasible if cell.id in pending]
    _check_budget(run, cells)
    groups: dict[str, list[PlannedCell]] = {}
    for cell in cells:
        groups.setdefault(_group_of(run, cell), []).append(cell)
    jobs: dict[str, Job] = {}
    for name, group in groups.items():
        ids = [cell.id for cell in group]
        here = _is_array(group[0])
        rounds = None if here else _rounds_of_a_job(run, name, ids)
        if rounds is None:
            jobs[name] = Job(cells=ids, here=here)
            continue
        before = None
        for part in range(math.ceil(_most_launches(run, ids) / rounds)):
            jobs[f"{name}.{part + 1}"] = Job(cells=ids, rounds=rounds, after=before)
            before = f"{name}.{part + 1}"
    return jobs


def _group_of(run: Run, cell: PlannedCell, allocation: str | None = None) -> str:
    """Return the name of the job that measures a cell: its id if it has its own.

    Args:
        run: the run.
        cell: a cell of it.
        allocation: as if the experiment had this one.
    """
    if not scheduler_of(run.plan.site).has_queue:
        return ON_THIS_MACHINE
    allocation = allocation or run.plan.experiment["allocation"]
    if allocation == CELL or _is_array(cell):
        return cell.id
    return cell.cell.topology if allocation == TOPOLOGY else EXPERIMENT


def is_alone(run: Run, cell: PlannedCell) -> bool:
    """Return whether no other cell shares its job."""
    return _group_of(run, cell) == cell.id


def _is_array(cell: PlannedCell) -> bool:
    """Whether its hosts are tasks of a job array, which no other cell can use.

    Its job submits them itself.
    """
    return is_array(find_launcher(cell.cell.launcher))


def _most_launches(run: Run, cells: Sequence[str]) -> int:
    return max(run.rule(cell).at_most for cell in cells)


def _rounds_of_a_job(run: Run, name: str, cells: Sequence[str]) -> int | None:
    """Return how many rounds fit into a job; None if all do."""
    minutes = run.plan.site["max_job_minutes"]
    if not scheduler_of(run.plan.site).has_queue or minutes is None:
        return None
    most, limit = _most_launches(run, cells), run.plan.experiment["time_limit"]
    facts = [(count_beside(run, cell), mean_seconds(run, cell)) for cell in cells]

    def seconds(rounds: int) -> float:
        launches = [(rounds + beside, mean) for beside, mean in facts]
        return job_seconds(launches, time_limit=limit)

    fits = [n for n in range(1, most + 1) if seconds(n) <= 60 * minutes]
    rounds = max(fits, default=0)
    if rounds == most:
        return None
    if rounds < 1:
        needed = math.ceil(seconds(1) / 60)
        raise ValueError(
            f"max_job_minutes: {minutes}: one round of the {len(cells)} cells of the "
            f"job {name} may take {needed} minutes (time_limit: {limit:g} s): raise "
            "max_job_minutes in the site file, lower time_limit, or let fewer cells "
            "share a job (allocation: topology or cell)"
        )
    # Parts of equal length, because the longest one waits longest in the queue.
    return math.ceil(most / math.ceil(most / rounds))


def _seconds(run: Run, cells: Sequence[str], rounds: int) -> float:
    """Return the seconds that a job may take."""
    return job_seconds(
        [(rounds + count_beside(run, cell), mean_seconds(run, cell)) for cell in cells],
        time_limit=run.plan.experiment["time_limit"],
    )


def resources_of(run: Run, name: str) -> Resources:
    """Return the resources that a job requests from Slurm."""
    # Snakemake asks again for each resource, so they are computed once.
    if name not in run.resources:
        job = jobs_of(run)[name]
        cells = [run.plan.cells[cell] for cell in job.cells]
        rounds = job.rounds or _most_launches(run, job.cells)
        run.resources[name] = job_resources(
            [(cell.cell, cell.shape) for cell in cells],
            run.plan.site,
            seconds=_seconds(run, job.cells, rounds),
        )
    return run.resources[name]


def why_too_long(run: Run) -> str | None:
    """Return which job exceeds the time limit of its partition; None if none does."""
    site = run.plan.site
    if not scheduler_of(site).has_queue:
        return None
    asked = {name: int(resources_of(run, name)["runtime"]) for name in jobs_of(run)}
    limit = find_time_limit(site["partition"])
    if not asked or limit is None or max(asked.values()) <= limit:
        return None
    longest = max(asked, key=lambda name: asked[name])
    partition = f"the partition {site['partition'] or 'that is the default'}"
    return (
        f"the job {longest} may take {asked[longest]} minutes, and {partition} allows "
        f"{limit}: Slurm refuses it or never starts it; set max_job_minutes: {limit} "
        "in site.yaml, lower time_limit, or name another partition"
    )


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


def held_seconds(run: Run, pending: Mapping[str, int], allocation: str) -> float:
    """Return device-seconds of the pending launches, with idle devices of a job.

    Args:
        run: the run.
        pending: cell -> number of its launches.
        allocation: a value of the key.
    """
    limit = run.plan.experiment["time_limit"]
    groups: dict[str, list[PlannedCell]] = {}
    for cell in run.feasible:
        if cell.id in pending:
            groups.setdefault(_group_of(run, cell, allocation), []).append(cell)
    total = 0.0
    for group in groups.values():
        sizes = [cell.cell.size for cell in group]
        hosts = max(size.nodes for size in sizes)
        devices = hosts * max(size.devices_per_node for size in sizes)
        total += devices * sum(
            (pending[cell.id] + count_beside(run, cell.id))
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
        needed += cell.cell.size.devices * (limit if mean is None else mean)
    if needed > budget:
        raise ValueError(
            f"budget: {budget / 3600:.3g} device-hours: one round of {len(cells)} "
            f"cells may take {needed / 3600:.3g} ({unknown} were never measured and "
            f"count with time_limit: {limit:g} s): raise budget, lower time_limit, or "
            "choose fewer cells (only)"
        )
