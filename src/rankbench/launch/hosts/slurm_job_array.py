"""A job array whose tasks are the hosts of a launch: submitted, awaited, cancelled.

python -m rankbench.launch.hosts.slurm_job_array --tasks=N --start-within=S
    --logs=FOLDER [options of sbatch] -- COMMAND

This program runs where Snakemake runs, as the launcher of a launch. Each task of the
array runs the command. The program ends when all tasks have ended, when one has failed,
or when not all have started in time. Then nothing of the array is left in the queue.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rankbench.environ import for_srun
from rankbench.launch.hosts.base import Hosts, Step
from rankbench.launch.hosts.slurm import ask_slurm, parse_lines, try_slurm

ASK_SECONDS = 2.0
SUBMIT_SECONDS = 120.0
GONE_AFTER = 30.0  # seconds
_SUBMITTED = "job array {job}: {tasks} tasks"
_QUEUED = ("PENDING", "CONFIGURING")
_ALIVE = (*_QUEUED, "RUNNING", "SUSPENDED", "COMPLETING")
# A failed task ends all tasks, because the others would wait for it.
_SCRIPT = """\
#!/bin/sh
"$@"
code=$?
[ "$code" -eq 0 ] || scancel "$SLURM_ARRAY_JOB_ID"
exit "$code"
"""


@dataclass(frozen=True)
class JobArray(Hosts):
    """The tasks of a job array that is yet to be submitted; each is a host.

    Attributes:
        tasks: number of hosts.
        options: options of sbatch for each task.
        start_within: seconds within which all of them must have started.
    """

    tasks: int
    options: tuple[str, ...]
    start_within: float
    names = ()

    def step(self, argv: Sequence[str], how: Step) -> list[str]:
        module = (sys.executable, "-m", "rankbench.launch.hosts.slurm_job_array")
        ours = (f"--tasks={self.tasks}", f"--start-within={self.start_within:g}")
        return [*module, *ours, f"--logs={how.logs}", *self.options, "--", *argv]

    def variables(self, inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
        return for_srun(inherited)

    def find_job(self, log: str) -> str | None:
        found = re.search(_SUBMITTED.format(job=r"(\d+)", tasks=r"\d+"), log)
        return found[1] if found else None


def main() -> int:
    """0: every task ended well."""
    at = sys.argv.index("--")
    ours, options, argv = sys.argv[1:4], sys.argv[4:at], sys.argv[at + 1 :]
    count, seconds, folder = (word.partition("=")[2] for word in ours)
    tasks, logs = int(count), Path(folder)
    job = submit(tasks, logs, options, argv)
    if job is None:
        return 1
    print(_SUBMITTED.format(job=job, tasks=tasks), flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        ended_well = _await(job, tasks, float(seconds))
    finally:
        cancel(job)
        for log in sorted(logs.glob("task*.log")):
            print(log.read_text(errors="replace"), end="", flush=True)
    return 0 if ended_well else 1


def submit(
    tasks: int, logs: Path, options: Sequence[str], argv: Sequence[str]
) -> str | None:
    """The number of the job; None if Slurm refuses it, and has said why."""
    script = logs / "task.sh"
    script.write_text(_SCRIPT)
    ours = (f"--array=0-{tasks - 1}", f"--output={logs}/task%a.log")
    command = ["sbatch", "--parsable", *ours, *options, str(script), *argv]
    try:
        said = ask_slurm(*command, timeout=SUBMIT_SECONDS)
    except ValueError as error:
        print(error, flush=True)
        return None
    # With several clusters, the name of the cluster follows the number.
    return said.strip().partition(";")[0]


def _await(job: str, count: int, start_within: float) -> bool:
    """Whether all tasks ended well. Returns early if that is impossible."""
    parent, begun = os.getppid(), time.monotonic()
    while os.getppid() == parent:
        time.sleep(ASK_SECONDS)
        tasks = look(job)
        if tasks is None:
            continue  # Slurm does not answer at the moment.
        if not any(task["JobState"] in _ALIVE for task in tasks):
            return all(task["JobState"] == "COMPLETED" for task in tasks)
        queued = [task for task in tasks if task["JobState"] in _QUEUED]
        if queued and time.monotonic() - begun > start_within:
            late = [f"{task['ArrayTaskId']} ({task['Reason']})" for task in queued]
            which = f"of {count} tasks {', '.join(late)}"
            print(f"not started within {start_within:g} s: {which}")
            return False
    return False


def look(job: str) -> list[dict[str, str]] | None:
    """The tasks of an array as Slurm knows them; None if it does not answer.

    Tasks that have not started may be one entry: ArrayTaskId, JobState, Reason.
    """
    said = try_slurm("scontrol", "--oneliner", "show", "job", job)
    return None if said is None else parse_lines(said, "JobId")


def cancel(job: str) -> None:
    """Remove the array from all hosts and from the queue."""
    try_slurm("scancel", "--quiet", job)
    deadline = time.monotonic() + GONE_AFTER
    while time.monotonic() < deadline:
        if not any(task["JobState"] in _ALIVE for task in look(job) or ()):
            return
        time.sleep(ASK_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
