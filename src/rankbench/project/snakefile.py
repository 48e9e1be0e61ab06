"""What the Snakefile asks about a run: files of its rules, and their resources."""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rankbench.failures import DATA, IMAGE, Need, find_needs
from rankbench.launch.hosts.slurm_resources import check_resources
from rankbench.launch.images.store import reason_to_make
from rankbench.matrix.catalog import load_catalog
from rankbench.matrix.site import NATIVE
from rankbench.project.jobs import jobs_of, resources_of
from rankbench.project.run import Run
from rankbench.schedulers import scheduler_of

# These resources differ between jobs; all others are facts of the site.
OF_A_JOB = (
    *("nodes", "tasks", "cpus_per_task", "runtime"),
    *("gres", "mpi", "slurm_extra"),
)


def needs_of(run: Run) -> Sequence[Need]:
    """Return the images and data sets of the chosen cells that must be made first."""
    if run.needs is None:
        files = {Need(DATA, name): file for name, file in data_files(run).items()}
        run.needs = [need for need, file in files.items() if not _is_whole(file)]
        for name in run.image_names:
            if reason_to_make(run.known_images[name]):
                run.needs.append(Need(IMAGE, name))
    return run.needs


def _is_whole(path: Path) -> bool:
    """Return whether a prepared file is there and its checksums hold."""
    try:
        with zipfile.ZipFile(path) as file:
            return file.testzip() is None
    except (OSError, ValueError, zipfile.BadZipFile, zlib.error):
        return False


def data_files(run: Run) -> dict[str, Path]:
    """Return the prepared file of each data set that the chosen cells read.

    Data of the user's own have none, nor have those of a script.
    """
    known = load_catalog().data
    names = sorted({cell.cell.data for cell in run.feasible})
    prepared = [n for n in names if n in known and known[n]["prepared"]]
    return {name: run.data_dir / f"{name}.npz" for name in prepared}


def need_files(run: Run, kind: str) -> list[str]:
    """Return the notes about images (or data sets) that must be made.

    Raises:
        ValueError: this site has no images.
    """
    if kind == IMAGE and run.plan.site["software"] == NATIVE:
        raise ValueError(
            "no cell runs in an image here: the site file has software: native "
            "(with software: container, each cell runs in the image of its backend)"
        )
    return [str(n.file(run.layout)) for n in needs_of(run) if n.kind == kind]


def job_inputs(run: Run, name: str) -> tuple[list[str], list[str]]:
    """Return what the job before leaves, and the notes about what the cells need."""
    job = jobs_of(run)[name]
    cells = [run.plan.cells[cell] for cell in job.cells]
    wanted = find_needs([(cell.image, cell.cell.data) for cell in cells])
    missing = set(needs_of(run))
    notes = [str(need.file(run.layout)) for need in wanted if need in missing]
    return [] if job.after is None else [str(run.layout.job(job.after))], notes


def job_files(run: Run) -> list[str]:
    """Return what the last job of each cell leaves."""
    jobs = jobs_of(run)
    followed = {job.after for job in jobs.values()}
    return [str(run.layout.job(name)) for name in jobs if name not in followed]


def summary_files(run: Run) -> list[str]:
    """Return the summaries of cells that were measured and are not measured now."""
    pending = {cell for job in jobs_of(run).values() for cell in job.cells}
    paths = [run.layout.summary(c.id) for c in run.plan.feasible if c.id not in pending]
    return [str(path) for path in paths if path.exists()]


def jobs_here(run: Run) -> str:
    """Return a pattern that matches jobs which run here though others are submitted."""
    names = [re.escape(name) for name, job in jobs_of(run).items() if job.here]
    return "|".join(names) or "(?!)"


def rule_resources(run: Run) -> dict[str, Any]:
    """Return the resources of the rule `job`: values, and functions of its wildcards.

    Snakemake calls each function several times per job: twelve functions doubled the
    time of a dry run. So there are as few as possible, and none without a queue.
    """
    found: dict[str, Any] = dict(check_resources(run.plan.site))
    if scheduler_of(run.plan.site).has_queue:
        # None omits the resource.
        for name in OF_A_JOB:
            found[name] = lambda wildcards, name=name: resources_of(
                run, wildcards.job
            ).get(name)
    return found
