"""The preview of a run: its launches, its images and its time."""

from __future__ import annotations

from rankbench.launch.hosts.slurm_resources import Resources
from rankbench.launch.images.store import reason_to_make
from rankbench.matrix.preview import Job, Preview
from rankbench.matrix.sharing import CELL, EXPERIMENT, ROUNDS, TOPOLOGY
from rankbench.project.jobs import (
    apart,
    held_seconds,
    last_jobs,
    shared_jobs,
    shared_resources,
)
from rankbench.project.requests import find_pending
from rankbench.project.resources import cell_resources, count_beside, mean_seconds
from rankbench.project.run import Run
from rankbench.schedulers import scheduler_of
from rankbench.stopping import Rule


def make_preview(run: Run) -> Preview:
    """Return what a run would do; write nothing."""
    pending = find_pending(run)
    experiment = run.plan.experiment
    known = {cell_id: mean_seconds(run, cell_id) for cell_id in pending}
    extra = {
        cell_id: count_beside(run, cell_id, measures=launches > 0)
        for cell_id, launches in pending.items()
    }
    images = {name: reason_to_make(run.known_images[name]) for name in run.image_names}
    shared, after = shared_jobs(run), last_jobs(run)
    jobs = {name: shared_resources(run, name) for name in shared}
    jobs |= {
        cell_id: cell_resources(run, cell_id)
        for cell_id in pending
        if cell_id not in after
    }
    has_queue = scheduler_of(run.plan.site).has_queue
    return Preview(
        run.chosen,
        pending,
        {cell_id: mean for cell_id, mean in known.items() if mean is not None},
        experiment["time_limit"],
        extra,
        {name: reason for name, reason in images.items() if reason},
        {name: _describe(asked) for name, asked in jobs.items()} if has_queue else {},
        rule=Rule.read(experiment["launches"]),
        in_rounds=bool(shared) and experiment["order"] == ROUNDS,
        held={
            allocation: held_seconds(run, allocation)
            for allocation in (CELL, TOPOLOGY, EXPERIMENT)
            if has_queue and shared
        },
        apart=apart(run),
    )


def _describe(asked: Resources) -> Job:
    return Job(nodes=int(asked["nodes"]), minutes=int(asked["runtime"]))
