"""The Slurm job that a supervisor runs in: its hosts, and the steps that it starts."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rankbench.environ import for_srun, read_job
from rankbench.launch.hosts.base import Hosts, Step

# These ports are below the range from which the kernel chooses (32768 and above).
_FIRST_PORT, _PORTS = 20000, 12000

ASK_SECONDS = 30.0
STEP_GONE_AFTER = 60.0  # seconds


@dataclass(frozen=True)
class SlurmJob(Hosts):
    """The hosts of a Slurm job that a launch uses, in Slurm's order."""

    id: str
    names: tuple[str, ...]
    start_within = 0.0

    def step(self, argv: Sequence[str], how: Step) -> list[str]:
        return [
            "srun",
            f"--nodes={len(self.names)}",
            f"--nodelist={','.join(self.names)}",
            f"--ntasks={len(self.names) * how.tasks_per_host}",
            f"--ntasks-per-node={how.tasks_per_host}",
            # Rank 0 is on the first host, and ranks fill one after the other.
            "--distribution=block",
            # The step may use all resources of the job, even if an outer step has taken
            # some.
            "--overlap",
            *(["--overcommit"] if how.shares_cores else []),
            # Ranks pin themselves.
            "--cpu-bind=none",
            f"--mpi={'pmix' if how.mpi else 'none'}",
            # A task that fails ends all tasks.
            "--kill-on-bad-exit=1",
            "--export=ALL",
            *argv,
        ]

    def port(self, serial: int) -> int:
        """Return the port at which the ranks of a launch meet.

        Jobs that share a host, and successive launches, use different ports, because an
        earlier launch may still hold its port.
        """
        return _FIRST_PORT + (int(self.id) * 97 + serial) % _PORTS

    def variables(self, inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
        return for_srun(inherited)

    def list_steps(self) -> set[str] | None:
        said = _ask(
            "squeue", "--noheader", "--steps", f"--jobs={self.id}", "--format=%i"
        )
        return None if said is None else set(said.split())

    def end_steps(self, before: set[str] | None) -> None:
        # srun cannot deliver signals to a host that it has lost.
        deadline = time.monotonic() + STEP_GONE_AFTER
        cancelled = False
        while time.monotonic() < deadline:
            left = self.list_steps()
            if left is None or before is None or not left - before:
                return
            if not cancelled:
                _ask("scancel", "--signal=KILL", *sorted(left - before))
                cancelled = True
            time.sleep(0.2)

    def why_ended(self) -> str | None:
        # As long as a process of the job exists, the state is COMPLETING and not yet,
        # for example, CANCELLED. So the reason says more than the state.
        said = _ask("scontrol", "show", "job", "--oneliner", self.id) or ""
        words = dict(re.findall(r"\b(JobState|Reason)=(\w+)", said))
        state, reason = words.get("JobState"), words.get("Reason")
        if state == "TIMEOUT" or reason == "TimeLimit":
            return "timeout"
        if state == "NODE_FAIL" or reason == "NodeDown":
            return "host"
        if state in ("COMPLETING", "CANCELLED", "PREEMPTED"):
            return "cancelled"
        # The script of the job has ended, and with it Slurm ended all steps.
        return "over" if state in ("COMPLETED", "FAILED") else None

    def find_lost(self) -> str | None:
        # A star marks a host that does not answer, and is not yet down.
        nodes = f"--nodes={','.join(self.names)}"
        said = _ask("sinfo", "--noheader", "--Node", nodes, "--format=%N %T") or ""
        lost = re.search(r"^(\S+) (?:down\S*|\S+\*)$", said, re.MULTILINE)
        return lost[1] if lost else None


def choose_hosts(names: Sequence[str], count: int, turn: int) -> tuple[str, ...]:
    """Choose hosts of a job; which ones rotates from turn to turn.

    So differences between hosts scatter the launches of a cell and do not set cells
    apart.

    Args:
        names: all hosts of the job, in Slurm's order.
        count: how many a launch needs.
        turn: 0, 1, 2 and so on.

    Returns:
        The hosts in Slurm's order, in which srun numbers its tasks.
    """
    chosen = {(turn + place) % len(names) for place in range(count)}
    return tuple(names[place] for place in sorted(chosen))


def find_slurm_job(nodes: int) -> SlurmJob:
    """Return all hosts of this process's job.

    Args:
        nodes: how many are needed.

    Raises:
        ValueError: there is no job, or it lacks what is needed.
    """
    job = read_job()
    if job is None:
        raise ValueError(
            "this site has Slurm, and this is no Slurm job: start it by sbatch, or "
            f"within `salloc --nodes={nodes} --exclusive`"
        )
    said = _ask("scontrol", "show", "hostnames", job.hosts)
    if said is None:
        raise ValueError(f"scontrol does not list the hosts of {job.hosts}")
    hosts = said.split()
    if len(hosts) < nodes:
        raise ValueError(
            f"{nodes} hosts are needed, job {job.id} has {len(hosts)}: {job.hosts}"
        )
    if job.tasks and not is_even(job.tasks):
        raise ValueError(
            f"job {job.id} has {job.tasks} tasks on {job.hosts}: every host must have "
            "equally many (sbatch --ntasks-per-node)"
        )
    return SlurmJob(job.id, tuple(hosts))


def is_even(tasks: str) -> bool:
    """Whether hosts have equally many tasks: in ``2(x3)`` yes, in ``2(x2),1`` no."""
    counts = [re.sub(r"\(x\d+\)", "", part) for part in tasks.split(",")]
    return len(set(counts)) == 1


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
