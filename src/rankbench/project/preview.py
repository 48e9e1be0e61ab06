"""The preview of a run: its launches, its images and its time."""

from __future__ import annotations

from rankbench.launch.images.store import reason_to_make
from rankbench.matrix.preview import Preview
from rankbench.project.requests import find_pending
from rankbench.project.resources import cell_resources, extra_launches, launch_seconds
from rankbench.project.run import Run


def make_preview(run: Run) -> Preview:
    """Return what a run would do; write nothing."""
    pending = find_pending(run)
    experiment = run.plan.experiment
    known = {cell_id: launch_seconds(run, cell_id) for cell_id in pending}
    extra = {
        cell_id: extra_launches(run, cell_id, measures=launches > 0)
        for cell_id, launches in pending.items()
    }
    images = {name: reason_to_make(run.known_images[name]) for name in run.image_names}
    jobs = {cell_id: cell_resources(run, cell_id).get("runtime") for cell_id in pending}
    return Preview(
        run.chosen,
        pending,
        {cell_id: mean for cell_id, mean in known.items() if mean is not None},
        experiment["time_limit"],
        extra,
        {name: reason for name, reason in images.items() if reason},
        {cell_id: int(minutes) for cell_id, minutes in jobs.items() if minutes},
    )
