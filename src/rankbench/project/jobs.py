"""The jobs of a run: each measures a group of cells, most often of one.

Also which launches are pending, what a job requests from Slurm, and what the Snakefile
asks about a run: files of its rules, and their resources.
"""

from __future__ import annotations

import math
import re
import zipfile
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rankbench.cell import safe_name
from rankbench.failures import DATA, IMAGE, Need, find_needs
from rankbench.launch.hosts.base import Resources, hosts_of
from rankbench.launch.hosts.slurm_resources import (
    check_resources,
    job_resources,
    job_seconds,
    launch_seconds,
)
from rankbench.launch.images.store import reason_to_make
from rankbench.launch.job.claim import read_request
from rankbench.launch.launchers import find_launcher, is_array
from rankbench.launch.process.classify import has_gate
from rankbench.matrix.catalog import load_catalog
from rankbench.matrix.plan import CELL, EXPERIMENT, TOPOLOGY
from rankbench.matrix.site import NATIVE
from rankbench.plan import PlannedCell
from rankbench.project.run import Job, Pending, Run
from rankbench.project.status import find_verdict, read_summary
from rankbench.record import (
    GATE,
    NOT_MEASURED,
    PROFILE,
    UNFINISHED,
    counting,
    explain_damage,
    judge,
    mean_seconds,
    read_attempt,
    why_stale,
)
from rankbench.schedulers import scheduler_of

ON_THIS_MACHINE = "this-machine"

# These resources differ between jobs; all others are facts of the site.
OF_A_JOB = (
    *("nodes", "tasks", "cpus_per_task", "runtime"),
    *("mpi", "sbatch"),
)


def find_pending(run: Run) -> dict[str, Pending]:
    """Return what each chosen cell lacks that is not measured, or is stale."""
    if run.pending is None:
        again = {cell.id for cell in run.rerun}
        found = {
            cell.id: Pending(run.launches(cell.id), "asked for again", again=True)
            if cell.id in again
            else _find_lack(run, cell)
            for cell in run.feasible
        }
        run.pending = {
            name: lack._replace(
                beside=_count_beside(run, name, lack), mean=mean_of_cell(run, name)
            )
            for name, lack in found.items()
            if lack
        }
    return run.pending


def _find_lack(run: Run, cell: PlannedCell) -> Pending | None:
    """What the requested attempt of a cell lacks, by its request and its summary."""
    experiment, wanted = run.plan.experiment, run.launches(cell.id)
    try:
        request = read_request(run.layout, cell.id)
        if request is None:
            return Pending(wanted, NOT_MEASURED)
        done = read_summary(run.layout, cell.id, request.attempt)
    except ValueError as error:
        return Pending(wanted, explain_damage(error, run.layout.root), again=True)
    image = run.plan.image_of(cell)
    if done is None or why_stale([done], cell_hash=cell.hash, image=image):
        # Its records say more, and they are not many.
        verdict = find_verdict(run.plan, run.layout, cell)
        if verdict is None or verdict.status != "stale":
            ok = 0 if verdict is None else verdict.ok
            why = f"{ok} of {wanted} {UNFINISHED}"
            left = 0 if verdict and verdict.complete else max(wanted - ok, 0)
            return Pending(left, why, done=ok)
        return Pending(run.launches(cell.id), str(verdict.reason), again=True)
    ok, enough = done.get("launches_ok", 0), done.get("enough")
    if enough is None and done.get("launches", 0) < wanted:
        return Pending(wanted - ok, f"{ok} of {wanted} {UNFINISHED}", done=ok)
    if enough is not None and done.get("budget") != experiment["budget"]:
        why = "the budget ended it, and is another now"
        return Pending(wanted - ok, why, done=ok)
    if (experiment["profile"] or request.profile) and not done.get("profile"):
        return Pending(0, "without a profile", done=done.get("launches", 0))
    return None


def jobs_of(run: Run) -> dict[str, Job]:
    """Return the jobs that measure the pending cells, by name.

    Raises:
        ValueError: a job would take longer than `max_job_minutes`, or the budget is
            smaller than one round.
    """
    if run.jobs is not None:
        return run.jobs
    groups = _group(run)
    _check_budget(run, [cell for group in groups.values() for cell in group])
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
            job = Job(cells=ids, rounds=rounds, after=before)
            before = f"{name}.{part + 1}"
            jobs[before] = job
    run.jobs = jobs
    return jobs


def _group(run: Run, allocation: str | None = None) -> dict[str, list[PlannedCell]]:
    """Return the pending cells by the names of their jobs.

    The name of a job is the id of its cell if it has no other.

    Args:
        run: the run.
        allocation: as if the experiment had this one; None for its own.
    """
    has_queue = scheduler_of(run.plan.site).has_queue
    if allocation is None:
        # What is added settles comparisons, and only launches in turn are compared.
        is_added = len(run.more) > 1
        allocation = EXPERIMENT if is_added else run.plan.experiment["allocation"]
    groups: dict[str, list[PlannedCell]] = {}
    for cell in run.feasible:
        if cell.id not in find_pending(run):
            continue
        name = ON_THIS_MACHINE
        if has_queue and (allocation == CELL or _is_array(cell)):
            name = cell.id
        elif has_queue:
            # Before it: `experiment.2` is the second part of a job that is split.
            asked = (safe_name(value) for value in cell.cell.queue.values())
            shared = cell.cell.topology if allocation == TOPOLOGY else EXPERIMENT
            name = ".".join((*asked, shared))
        groups.setdefault(name, []).append(cell)
    return groups


def _is_array(cell: PlannedCell) -> bool:
    """Whether its hosts are tasks of a job array, which no other cell can use.

    Its job submits them itself.
    """
    return is_array(find_launcher(cell.cell.launcher))


def _most_launches(run: Run, cells: Sequence[str]) -> int:
    return max(1, *(find_pending(run)[cell].launches for cell in cells))


def _rounds_of_a_job(run: Run, name: str, cells: Sequence[str]) -> int | None:
    """Return how many rounds fit into a job; None if all do."""
    minutes = run.plan.site["max_job_minutes"]
    if not scheduler_of(run.plan.site).has_queue or minutes is None:
        return None
    most, seconds = _most_launches(run, cells), _seconds(run, cells)
    fits = [n for n in range(1, most + 1) if seconds(n) <= 60 * minutes]
    rounds = max(fits, default=0)
    if rounds == most:
        return None
    if rounds < 1:
        needed = math.ceil(seconds(1) / 60)
        raise ValueError(
            f"max_job_minutes: {minutes}: one round of the {len(cells)} cells of the "
            f"job {name} may take {needed} minutes: raise it in the site file, lower "
            f"time_limit ({run.plan.experiment['time_limit']:g} s), or let fewer cells "
            "share a job (allocation: topology or cell)"
        )
    # Parts of equal length, because the longest one waits longest in the queue.
    return math.ceil(most / math.ceil(most / rounds))


def _seconds(run: Run, cells: Sequence[str]) -> Callable[[int], float]:
    """Return the seconds that a job may take, as a function of its rounds."""
    lacks = [find_pending(run)[cell] for cell in cells]
    return lambda rounds: job_seconds(
        [(min(rounds, lack.launches) + lack.beside, lack.mean) for lack in lacks],
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
            seconds=_seconds(run, job.cells)(rounds),
        )
    return run.resources[name]


def why_too_long(run: Run) -> str | None:
    """Return which job exceeds the time limit of its partition; None if none does."""
    site = run.plan.site
    if not scheduler_of(site).has_queue:
        return None
    limits = hosts_of(site).limits()
    asked = {name: resources_of(run, name) for name in jobs_of(run)}
    for name in sorted(asked, key=lambda name: -int(asked[name]["runtime"])):
        minutes, partition = asked[name]["runtime"], asked[name].get("slurm_partition")
        # A job of several partitions, `a,b`, starts in the first that is free.
        names = str(partition).split(",") if partition else [None]
        limit = max(limits.get(each, 0) for each in names) or math.inf
        if int(minutes) > limit:
            return (
                f"the job {name} may take {minutes} minutes, and the partition "
                f"{partition or 'that is the default'} allows {limit:.0f}: Slurm "
                "refuses it or never starts it; set max_job_minutes: "
                f"{limit:.0f} in site.yaml, lower time_limit, or name another partition"
            )
    return None


def _count_beside(run: Run, cell_id: str, lack: Pending) -> int:
    experiment, cell = run.plan.experiment, run.plan.cells[cell_id].cell
    wanted = {
        GATE: experiment["gate"] and lack.launches > 0 and has_gate(cell),
        PROFILE: experiment["profile"],
    }
    made: list[str] = []
    with suppress(ValueError):
        if not lack.again and (request := read_request(run.layout, cell_id)):
            place = run.layout.attempt(cell_id, request.attempt)
            made = [n for n in wanted if judge(read_attempt(place / n), 1).complete]
    return sum(bool(is_wanted) and n not in made for n, is_wanted in wanted.items())


def mean_of_cell(run: Run, cell_id: str) -> float | None:
    """Return the mean seconds of a cell's latest launches; None if there are none."""
    for attempt in reversed(run.layout.attempts(cell_id)):
        with suppress(ValueError, KeyError):
            records = read_attempt(run.layout.attempt(cell_id, attempt))
            if (found := mean_seconds(counting(records))) is not None:
                return found
    return None


def held_hours(run: Run, allocation: str) -> float:
    """Return device-hours of the pending launches at most, with idle devices of jobs.

    Args:
        run: the run, on a site with a queue.
        allocation: as if the experiment had this one.
    """
    pending, limit = find_pending(run), run.plan.experiment["time_limit"]
    seconds = 0.0
    for group in _group(run, allocation).values():
        sizes = [cell.cell.size for cell in group]
        devices = max(size.devices_per_node for size in sizes)
        lacks = (pending[cell.id] for cell in group)
        lasts = (lack.total * launch_seconds(lack.mean, limit) for lack in lacks)
        seconds += max(size.nodes for size in sizes) * devices * sum(lasts)
    return seconds / 3600


def _check_budget(run: Run, cells: Sequence[PlannedCell]) -> None:
    """Check that the budget suffices for one round.

    Raises:
        ValueError: it does not; the message names the key.
    """
    budget, limit = run.plan.experiment["budget"], run.plan.experiment["time_limit"]
    if budget is None or not cells:
        return
    means = [find_pending(run)[cell.id].mean for cell in cells]
    unknown = means.count(None)
    needed = sum(
        cell.cell.size.devices * (limit if mean is None else mean)
        for cell, mean in zip(cells, means, strict=True)
    )
    if needed > budget:
        raise ValueError(
            f"budget: {budget / 3600:.3g} device-hours: one round of {len(cells)} "
            f"cells may take {needed / 3600:.3g} ({unknown} were never measured and "
            f"count with time_limit: {limit:g} s): raise budget, lower time_limit, or "
            "choose fewer cells (only)"
        )


# The first command that fails is told to the supervisor (environ.read_setup_fault).
_SETUP = """\
unset RANKBENCH_SETUP
trap ': "${RANKBENCH_SETUP:=$BASH_COMMAND: exit status $?}"' ERR
{}
trap - ERR
export RANKBENCH_SETUP
exec "$@"
"""


def with_setup(run: Run, command: Sequence[str]) -> list[str]:
    """Return a command of a job, after the site's key `setup`."""
    if not (setup := run.plan.site["setup"]):
        return list(command)
    return ["bash", "-c", _SETUP.replace("{}", setup), "setup", *command]


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
            "no cell runs in an image here: set software: container in the site file"
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
    paths = [
        run.layout.summary(cell.id, max(run.layout.attempts(cell.id), default=0))
        for cell in run.plan.feasible
        if cell.id not in pending
    ]
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
    found: dict[str, Any] = dict(check_resources(run.plan.site, run.feasible))
    if scheduler_of(run.plan.site).has_queue:
        names = list(OF_A_JOB)
        asked = {name for cell in run.feasible for name in cell.cell.queue}
        names += {"slurm_partition"} if "partition" in asked else ()
        names += {"qos"} & asked
        # None omits the resource.
        for name in names:
            found[name] = lambda wildcards, name=name: resources_of(
                run, wildcards.job
            ).get(name)
    return found
