"""Slurm jobs that measure cells: list them, and wait for those of a lost session."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# The plugin's comments on rules with two wildcards, which are named in
# workflow/rules/measure.smk.
_COMMENT = "rule_cell_wildcards_{experiment}_{cell}"
_COMMENT_OF_JOB = "rule_job_wildcards_{experiment}_{job}"


def comment_of(experiment: str, cell: str) -> str:
    """The comment in the queue of a job that measures a cell."""
    return _COMMENT.format(experiment=experiment, cell=cell)


_FORMAT = "%i|%T|%N|%r|%Z|%k"
_ASK_SECONDS = 30.0
_WAIT_SECONDS = 5.0
_TELL_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class CellJob:
    """A job in the queue.

    Attributes:
        id: its number.
        cell: id of the cell that it measures.
        state: in Slurm's word, such as ``PENDING`` or ``RUNNING``.
        hosts: as Slurm shortens them; empty while it is queued.
        why: why it is still queued, in Slurm's word.
    """

    id: str
    cell: str
    state: str
    hosts: str
    why: str

    def describe(self) -> str:
        """In words, such as `job 12 queued (Resources)`."""
        if self.hosts:
            return f"job {self.id} {self.state.lower()} on {self.hosts}"
        what = "queued" if self.state == "PENDING" else self.state.lower()
        return f"job {self.id} {what} ({self.why})"


def read_queue(
    experiment: str,
    folder: Path,
    cells: Iterable[str],
    shared: Mapping[str, Sequence[str]],
) -> list[CellJob]:
    """This user's jobs for cells of an experiment, as Slurm has them in its queue.

    Args:
        experiment: its name.
        folder: the project that Snakemake runs in.
        cells: ids of the cells.
        shared: name of a job that measures several cells -> their ids.

    Returns:
        For each cell its job; the job of several cells once for each.

    Raises:
        ValueError: Slurm does not answer.
    """
    place = os.path.realpath(folder)
    return parse_queue(_ask_queue(), experiment, place, cells, shared)


def parse_queue(
    said: str,
    experiment: str,
    folder: str,
    cells: Iterable[str],
    shared: Mapping[str, Sequence[str]],
) -> list[CellJob]:
    """The jobs of `read_queue` among the lines of squeue."""
    of: dict[str, Sequence[str]] = {
        _COMMENT_OF_JOB.format(experiment=experiment, job=job): members
        for job, members in shared.items()
    }
    of |= {comment_of(experiment, cell): [cell] for cell in cells}
    found = []
    for line in said.splitlines():
        job, state, hosts, why, where, comment = line.split("|", maxsplit=5)
        if os.path.realpath(where) == folder:
            for cell in of.get(comment.strip(), ()):
                found.append(CellJob(job, cell, state, hosts, why))
    return found


def wait_for_lost_jobs(
    look: Callable[[], Sequence[CellJob]], *, say: Callable[[str], None]
) -> bool:
    """Wait for the jobs of an earlier session, which go on without it.

    Args:
        look: finds those that are left.
        say: gets lines of progress.

    Returns:
        Whether there were any.
    """
    jobs, told = look(), 0.0
    if not jobs:
        return False
    ids = {job.id for job in jobs}
    say(
        f"{len(ids)} jobs of an earlier run are still in the queue. This run waits "
        "for them, and then measures what is missing (scancel ends them sooner):"
    )
    while jobs:
        if time.monotonic() - told > _TELL_SECONDS:
            for job in jobs:
                say(f"  {job.cell}  {job.describe()}")
            told = time.monotonic()
        time.sleep(_WAIT_SECONDS)
        try:
            left = look()
        except ValueError as error:
            say(f"  {error}")
            continue
        for job in jobs:
            if job.id not in {one.id for one in left}:
                say(f"  {job.cell}  job {job.id} has ended, {len(left)} left")
        jobs = left
    return True


def _ask_queue() -> str:
    command = ["squeue", "--me", "--noheader", f"--format={_FORMAT}"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_ASK_SECONDS, check=True
        )
    except FileNotFoundError:
        raise ValueError(
            "squeue is not here: run this where Slurm's commands are (a login node), "
            "or say scheduler: none in the site file"
        ) from None
    except subprocess.CalledProcessError as error:
        raise ValueError(f"squeue fails: {error.stderr.strip()}") from error
    except subprocess.TimeoutExpired:
        raise ValueError(
            f"squeue has not answered for {_ASK_SECONDS:g} s: Slurm's controller is "
            "not reached; try `scontrol ping`, and again later"
        ) from None
    return done.stdout
