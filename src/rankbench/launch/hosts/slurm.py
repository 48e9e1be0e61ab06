"""The Slurm job that a supervisor runs in: its hosts, and the steps that it starts."""

from __future__ import annotations

import re
import subprocess
import time
from dataclasses import dataclass

from rankbench.cell import Shape
from rankbench.environ import read_job

# Below the range from which the kernel chooses ports (32768 and above).
_FIRST_PORT, _PORTS = 20000, 12000

ASK_SECONDS = 30.0
STEP_GONE_AFTER = 60.0  # seconds


@dataclass(frozen=True, slots=True)
class Allocation:
    """The hosts of a job that a launch uses, in Slurm's order."""

    job: str
    hosts: tuple[str, ...]

    def port(self, number: int) -> int:
        """Where the ranks of a launch meet.

        Jobs that share a host, and successive launches, use different ports, because an
        earlier launch may still hold its port.
        """
        return _FIRST_PORT + (int(self.job) * 97 + number) % _PORTS


def read_allocation(shape: Shape) -> Allocation:
    """The hosts of this job that a launch of this shape takes.

    Raises:
        ValueError: there is no job, or it has not got what the shape needs.
    """
    job = read_job()
    if job is None:
        raise ValueError(
            "this site has Slurm, and this is no Slurm job: start it by sbatch, or "
            f"within `salloc --nodes={shape.nodes} --exclusive`"
        )
    said = _ask("scontrol", "show", "hostnames", job.hosts)
    if said is None:
        raise ValueError(f"scontrol does not tell the hosts of {job.hosts}")
    hosts = said.split()
    if len(hosts) < shape.nodes:
        raise ValueError(
            f"the cell needs {shape.nodes} hosts, job {job.id} has {len(hosts)}: "
            f"{job.hosts}"
        )
    if job.tasks and not is_even(job.tasks):
        raise ValueError(
            f"job {job.id} has {job.tasks} tasks on {job.hosts}: every host must have "
            "equally many (sbatch --ntasks-per-node)"
        )
    return Allocation(job.id, tuple(hosts[: shape.nodes]))


def is_even(tasks: str) -> bool:
    """Whether all hosts have the same number: ``2(x3)`` does, ``2(x2),1`` does not."""
    counts = [re.sub(r"\(x\d+\)", "", part) for part in tasks.split(",")]
    return len(set(counts)) == 1


def step_argv(
    hosts: tuple[str, ...],
    *,
    tasks_per_host: int,
    mpi: bool = False,
    shares_cores: bool = False,
) -> list[str]:
    """The beginning of a command that runs as a step of the job.

    Args:
        hosts: where it runs.
        tasks_per_host: how often it runs on each.
        mpi: whether its tasks are the ranks of an MPI program.
        shares_cores: whether there are fewer cores than tasks.
    """
    return [
        "srun",
        f"--nodes={len(hosts)}",
        f"--nodelist={','.join(hosts)}",
        f"--ntasks={len(hosts) * tasks_per_host}",
        f"--ntasks-per-node={tasks_per_host}",
        # Rank 0 is on the first host, and ranks fill one after the other.
        "--distribution=block",
        # All resources of the job, even if an outer step has taken some of them.
        "--overlap",
        *(["--overcommit"] if shares_cores else []),
        # Ranks pin themselves.
        "--cpu-bind=none",
        f"--mpi={'pmix' if mpi else 'none'}",
        # A task that fails ends all tasks.
        "--kill-on-bad-exit=1",
        "--export=ALL",
    ]


def list_steps(job: str) -> set[str] | None:
    """Ids of the current steps of a job; None if Slurm does not answer."""
    said = _ask("squeue", "--noheader", "--steps", f"--jobs={job}", "--format=%i")
    return None if said is None else set(said.split())


def end_steps(job: str, before: set[str] | None) -> None:
    """End the remaining processes of a launch's step on all hosts, and wait for that.

    Args:
        job: the job.
        before: steps that were there before the launch.
    """
    deadline = time.monotonic() + STEP_GONE_AFTER
    told = False
    while time.monotonic() < deadline:
        left = list_steps(job)
        if left is None or before is None or not left - before:
            return
        if not told:
            _ask("scancel", "--signal=KILL", *sorted(left - before))
            told = True
        time.sleep(0.2)


def why_ended(job: str) -> str | None:
    """Why Slurm ends a job: ``timeout``, ``host``, ``cancelled``; None if it does not.

    As long as a process of the job exists, the state is COMPLETING and not yet, for
    example, CANCELLED. So the reason says more than the state.
    """
    said = _ask("scontrol", "show", "job", "--oneliner", job) or ""
    words = dict(re.findall(r"\b(JobState|Reason)=(\w+)", said))
    state, reason = words.get("JobState"), words.get("Reason")
    if state == "TIMEOUT" or reason == "TimeLimit":
        return "timeout"
    if state == "NODE_FAIL" or reason == "NodeDown":
        return "host"
    if state in ("COMPLETING", "CANCELLED", "PREEMPTED"):
        return "cancelled"
    return None


# Slurm's message for a job that it has forgotten, or never knew.
_UNKNOWN = "Invalid job id"


def has_ended(job: str) -> bool:
    """Whether Slurm knows that a job has ended; False if it does not answer."""
    done = run_program("squeue", "--noheader", f"--jobs={job}", "--format=%T")
    if done is None:
        return False
    if done.returncode != 0:
        return _UNKNOWN in done.stderr
    return not done.stdout.strip()


def _ask(*command: str) -> str | None:
    """The output of a Slurm program; None if it fails, is missing or hangs."""
    done = run_program(*command)
    return None if done is None or done.returncode != 0 else done.stdout


def run_program(
    *command: str, timeout: float | None = None
) -> subprocess.CompletedProcess[str] | None:
    """Run a Slurm program to its end; None if it is missing or hangs.

    Args:
        command: what is run.
        timeout: seconds; None is `ASK_SECONDS`.
    """
    limit = ASK_SECONDS if timeout is None else timeout
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=limit, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
