"""Preparations of the main process before Snakemake starts a job."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from rankbench.environ import job_id
from rankbench.failures import PLAN_VARIABLE, find_needs
from rankbench.launch.hosts.base import CellJob
from rankbench.launch.images.store import check_folder
from rankbench.launch.job.claim import Owner, make_request
from rankbench.launch.job.provenance import freeze_code, freeze_files
from rankbench.plan import read_plan
from rankbench.project.jobs import (
    find_pending,
    jobs_of,
    needs_of,
    why_too_long,
)
from rankbench.project.preview import Preview
from rankbench.project.run import Run, take_results
from rankbench.project.status import describe_queue, find_jobs
from rankbench.record import write_if_changed, write_json
from rankbench.say import say
from rankbench.schedulers import scheduler_of

# Variable with the id of the process that has begun the run of its child.
BEGUN = "RANKBENCH_BEGUN"


def has_begun() -> bool:
    """Return whether the parent of this process has begun its run."""
    return os.environ.get(BEGUN) == str(os.getppid())


def end_with_parent() -> None:
    """From now on, interrupt this process group when the parent is dead.

    A `rankbench run` that is killed cannot tell its Snakemake, which would measure on.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os.killpg(0, signal.SIGINT)

    threading.Thread(target=watch, daemon=True).start()


def begin(run: Run, *, measures: bool = True) -> None:
    """Take the lock, and write the plan and the requests, so that jobs can start.

    Args:
        run: the run to begin.
        measures: whether jobs may be submitted. If not, Slurm does not have to answer.

    Raises:
        ValueError: another run uses this result directory, or a site with another
            scheduler has; Slurm does not answer; or a file of the user's own was
            changed since the plan was made.
    """
    if os.pathsep in str(run.layout.root.absolute()):
        raise ValueError(
            f"{run.layout.root.absolute()}: ranks cannot find code in a folder with "
            f"{os.pathsep!r} in its name: rename it"
        )
    run.lock = take_results(run.layout)
    # Another run may have measured some of it since the preview.
    run.forget()
    check_scheduler(run)
    chosen = {cell.id for cell in run.chosen}

    def find_lost_jobs() -> list[CellJob]:
        jobs = find_jobs(run.plan, run.layout, Path()).values()
        return [job for job in jobs if job.cell in chosen]

    try:
        # Those of an earlier run, which has ended, since this run has the lock.
        if wait_for_lost_jobs(find_lost_jobs, say=partial(say, aside=True)):
            # They have measured some of the cells.
            run.forget()
            say(Preview(run).lines()[0], aside=True)
    except ValueError as error:
        if measures:
            raise
        say(f"{error}; this run submits no job, so it goes on", aside=True)
    write_if_changed(run.layout.plan, run.plan.to_json())
    source = Path(run.plan.experiment["file"])
    write_if_changed(run.layout.experiment, source.read_bytes())
    pending, jobs = find_pending(run), jobs_of(run)
    if measures and (why := why_too_long(run)):
        say(why, aside=True)
    if scheduler_of(run.plan.site).has_queue and (job := job_id()):
        say(
            f"this is within the Slurm job {job}, whose hosts will idle, because cells "
            "get jobs of their own: start the run on a login node if you can",
            aside=True,
        )
    experiment = run.plan.experiment
    for name, lack in pending.items():
        make_request(
            run.layout,
            name,
            again=lack.again,
            launches=lack.done + lack.launches,
            cell_hash=run.plan.cells[name].hash,
            profile=experiment["profile"],
            # Who asks for these launches sets no limit to them.
            budget=None if name in run.more else experiment["budget"],
        )
    for name in jobs:
        # A job that is complete would not measure what a rerun asks for.
        run.layout.job(name).unlink(missing_ok=True)
    for name in run.image_names:
        check_folder(run.known_images[name])
    # This run tries again what an earlier one could not make.
    for need in find_needs((c.image, c.cell.data, c.id) for c in run.feasible):
        need.file(run.layout).unlink(missing_ok=True)
    # By these variables all jobs, Slurm jobs too, find the plan and the frozen code.
    os.environ[PLAN_VARIABLE] = str(run.layout.plan)
    frozen = freeze_code(run.layout.code.absolute()) / "src"
    others = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{frozen}:{others}" if others else str(frozen)
    for own in run.own.files.values():
        freeze_files(run.layout.own(own.digest), own.files, own.digest)
    program = Path(sys.argv[0])
    # `python -m NAME` runs NAME/__main__.py.
    name = program.parent.name if program.name == "__main__.py" else program.name
    agenda = {
        "owner": asdict(Owner.of(os.getpid())),
        "command": " ".join([name, *sys.argv[1:]]),
        "jobs": {name: asdict(job) for name, job in jobs.items()},
        "needs": [asdict(need) for need in needs_of(run)],
        "more": run.more,
        "plots": run.plots,
    }
    write_json(run.layout.agenda, agenda)


def check_scheduler(run: Run) -> None:
    """Refuse to measure cells of a cluster into the results of a laptop.

    Raises:
        ValueError: the records are of a site with another scheduler.
    """
    try:
        before = read_plan(run.layout.plan).site["scheduler"]
    except (OSError, ValueError):
        return  # There is no plan that counts.
    here = run.plan.site["scheduler"]
    if here != before and run.layout.records.exists():
        raise ValueError(
            f"{run.layout.root} has launches of a site with scheduler: {before}, and "
            f"this one has {here}: name another folder (results_dir in site.yaml)"
        )


def wait_for_lost_jobs(
    look: Callable[[], Sequence[CellJob]],
    *,
    say: Callable[[str], None],
    every: float = 5.0,
) -> bool:
    """Wait for the jobs of an earlier session, which go on without it.

    Args:
        look: finds those that are left.
        say: gets lines of progress.
        every: seconds between two looks.

    Returns:
        Whether there were any.
    """
    if not (jobs := look()):
        return False
    say(
        f"{len({job.id for job in jobs})} jobs of an earlier run are still in the "
        "queue. This run waits for them, and then measures what is missing (scancel "
        "ends them sooner):"
    )
    said = ""
    while jobs:
        before, said = said, describe_queue(jobs)
        if said != before:
            say(f"  {said}")
        time.sleep(every)
        try:
            jobs = look()
        except ValueError as error:
            say(f"  {error}")
    return True
