"""What Slurm is asked: about the job of a supervisor, and about jobs in the queue."""

from __future__ import annotations

import math
import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from rankbench.environ import for_slurm, for_srun, read_job
from rankbench.launch.hosts.base import (
    TIME_LIMIT,
    Asked,
    CellJob,
    Hosts,
    JobEnd,
    Resources,
    Step,
    run_to_end,
)
from rankbench.launch_spec import choose_port

ASK_SECONDS = 30.0
# States of hosts, and flags of states, with which a host gets no job. One without power
# gets jobs: it is started for them.
_DOWN = {
    *("DOWN", "DRAIN", "DRAINED", "DRAINING", "ERROR", "FAIL", "FAILING", "FUTURE"),
    *("INVAL", "INVALID_REG", "MAINT", "MAINTENANCE", "UNKNOWN", "NOT_RESPONDING"),
    *("*", "$"),
}
STEP_GONE_AFTER = 60.0  # seconds
_STEP = "rankbench.launch"  # name of the steps of a launch


@dataclass(frozen=True)
class SlurmJob(Hosts):
    """The hosts of a Slurm job that a launch uses, in Slurm's order."""

    id: str
    names: tuple[str, ...]

    @classmethod
    def find(cls, nodes: int) -> Self:
        job = read_job()
        if job is None:
            raise ValueError(
                "this site has Slurm, and this is no Slurm job: start it by sbatch, or "
                f"within `salloc --nodes={nodes} --exclusive`"
            )
        said = try_slurm("scontrol", "show", "hostnames", job.hosts)
        if said is None:
            raise ValueError(f"scontrol does not list the hosts of {job.hosts}")
        hosts = said.split()
        if len(hosts) < nodes:
            raise ValueError(
                f"{nodes} hosts are needed, job {job.id} has {len(hosts)}: {job.hosts}"
            )
        # Hosts have equally many tasks in `2(x3)`, but not in `2(x2),1`.
        counts = {re.sub(r"\(x\d+\)", "", n) for n in (job.tasks or "").split(",")}
        if len(counts) > 1:
            raise ValueError(
                f"job {job.id} has {job.tasks} tasks on {job.hosts}: every host must "
                "have equally many (sbatch --ntasks-per-node)"
            )
        return cls(job.id, tuple(hosts))

    def choose(self, count: int, turn: int) -> SlurmJob:
        """Return hosts in Slurm's order, in which srun numbers its tasks.

        Which ones rotates from turn to turn. So differences between hosts scatter the
        launches of a cell and do not set cells apart.
        """
        chosen = {(turn + place) % len(self.names) for place in range(count)}
        return replace(self, names=tuple(self.names[place] for place in sorted(chosen)))

    def step(self, argv: Sequence[str], how: Step) -> list[str]:
        return [
            "srun",
            f"--job-name={_STEP}",
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
        return choose_port(int(self.id), serial)

    def variables(self, inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
        return for_srun(inherited)

    def end_steps(self) -> None:
        # srun cannot deliver signals to a host that it has lost.
        deadline = time.monotonic() + STEP_GONE_AFTER
        cancelled = False
        steps = ("--steps", f"--jobs={self.id}", "--format=%i %j")
        while time.monotonic() < deadline:
            said = try_slurm("squeue", "--noheader", *steps) or ""
            left = re.findall(rf"^(\S+) {_STEP}\s*$", said, re.MULTILINE)
            if not left:
                return
            if not cancelled:
                try_slurm("scancel", "--signal=KILL", *left)
                cancelled = True
            time.sleep(0.2)

    def why_ended(self) -> JobEnd | None:
        return parse_end(try_slurm("scontrol", "show", "job", "--oneliner", self.id))

    def find_lost(self) -> str | None:
        # A star marks a host that does not answer, and is not yet down.
        nodes = f"--nodes={','.join(self.names)}"
        said = try_slurm("sinfo", "--noheader", "--Node", nodes, "--format=%N %T") or ""
        lost = re.search(r"^(\S+) (?:down\S*|\S+\*)$", said, re.MULTILINE)
        return lost[1] if lost else None

    @classmethod
    def has_ended(cls, job: str) -> bool:
        # Not by its number: Slurm fails if it has forgotten the job.
        said = try_slurm("squeue", "--me", "--noheader", "--format=%A")
        return said is not None and job not in said.split()

    @classmethod
    def resources(cls, site: Mapping[str, Any], asked: Asked) -> Resources:
        from rankbench.launch.hosts.slurm_resources import ask_slurm_for

        return ask_slurm_for(site, asked)

    @classmethod
    def list_hosts(cls, site: Mapping[str, Any]) -> Mapping[str, str | None]:
        wanted = [f"--partition={site['partition']}"] if site["partition"] else []
        asked = ("--noheader", "--Node", "--format=%N|%T|%E")
        lines = ask_slurm("sinfo", *asked, *wanted).splitlines()
        return {
            host: None if is_up(state) else f"Slurm says {state} on {host}: {reason}"
            for host, state, reason in (line.split("|", maxsplit=2) for line in lines)
        }

    @classmethod
    def limits(cls) -> dict[str | None, float]:
        said = try_slurm("scontrol", "--oneliner", "show", "partition", timeout=10.0)
        limits: dict[str | None, float] = {}
        for partition in parse_lines(said or "", "PartitionName"):
            limit = minutes_of(partition.get("MaxTime", ""))
            limits[partition["PartitionName"]] = limit
            if partition.get("Default") == "YES":
                limits[None] = limit
        return limits

    @classmethod
    def read_queue(
        cls, experiment: str, folder: Path, jobs: Mapping[str, Sequence[str]]
    ) -> list[CellJob]:
        said = ask_slurm("squeue", "--me", "--noheader", f"--format={_FORMAT}")
        return parse_queue(said, experiment, os.path.realpath(folder), jobs)


def is_up(state: str) -> bool:
    """Whether jobs start on a host: ``MIXED+PLANNED``, ``idle~``; not ``DOWN*+DRAIN``.

    A star marks one that does not answer, a dollar one in maintenance.
    """
    return not _DOWN & set(re.findall("[A-Z_]+|[*$]", state.upper()))


def try_slurm(*command: str, timeout: float | None = None) -> str | None:
    """`ask_slurm`; None if the program fails, is missing or does not answer."""
    try:
        return ask_slurm(*command, timeout=timeout)
    except ValueError:
        return None


def ask_slurm(*command: str, timeout: float | None = None) -> str:
    """The output of a Slurm program.

    Args:
        command: what is run.
        timeout: seconds; None is `ASK_SECONDS`.

    Raises:
        ValueError: it is missing, fails or does not answer.
    """
    name, seconds = command[0], timeout or ASK_SECONDS
    try:
        done = run_to_end(command, timeout=seconds, env=for_slurm())
    except OSError:
        raise ValueError(
            f"{name} is not here: run this where Slurm's commands are (a login node); "
            "a machine without Slurm has scheduler: none in the site file"
        ) from None
    except subprocess.TimeoutExpired:
        raise ValueError(
            f"{name} has not answered for {seconds:g} s: Slurm's controller is "
            "not reached; try `scontrol ping`, and again later"
        ) from None
    if done.returncode:
        # The lines before the last one are consequences or details.
        said = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        raise ValueError(f"{name} fails: {said[-1]}")
    return done.stdout


# State or reason of a job -> what happened to it, and whose fault that is.
_ENDS = {
    "TIMEOUT|TimeLimit|DEADLINE": (TIME_LIMIT, "site"),
    "NODE_FAIL|NodeDown|BOOT_FAIL": ("a host of the job failed", "site"),
    "JobLaunchFailure|LAUNCH_FAILED": ("its Slurm job did not start there", "site"),
    "PREEMPTED": ("its Slurm job was preempted", "site"),
    # As long as a process of a cancelled job exists, its state is COMPLETING.
    "CANCELLED|COMPLETING": ("its Slurm job was cancelled", "user"),
    # The script of the job has ended, and with it Slurm ended all steps.
    "COMPLETED|FAILED": ("its Slurm job ended before the launch", "user"),
}


def parse_end(said: str | None) -> JobEnd | None:
    """Why a job ended, by ``scontrol --oneliner show job``; None if it has not."""
    words = dict(
        re.findall(
            r"\b(JobState|Reason|PreemptTime|\w*Host|NodeList)=(\S+)", said or ""
        )
    )
    state, reason = words.get("JobState", ""), words.get("Reason", "None")
    # During the grace time of a preemption, a job is still RUNNING.
    if words.get("PreemptTime", "None") not in ("None", "Unknown"):
        state = "PREEMPTED"
    host = words.get("BatchHost") or words.get("NodeList", "")
    spoken = [
        state,
        *([reason] if reason != "None" else []),
        *([f"on {host}"] if host not in ("", "None", "(null)") else []),
    ]
    # The reason says more than the state.
    for pattern, (what, cause) in _ENDS.items():
        if {state, reason} & set(pattern.split("|")):
            return JobEnd(what, cause, f"Slurm says {' '.join(spoken)}")
    return None


def read_states() -> dict[str, str] | None:
    """The state of each job of this user, by its number; None without an answer."""
    asked = ("--me", "--noheader", "--states=all", "--format=%i|%T")
    said = try_slurm("squeue", *asked)
    return None if said is None else dict(re.findall(r"(\S+)\|(\S+)", said))


def why_job_ended(job: str) -> str:
    """What Slurm says about a job that has ended, in words; asked once."""
    said = try_slurm("scontrol", "show", "job", "--oneliner", job)
    if said is None:  # It has forgotten the job: is there accounting?
        kept = try_slurm("sacct", "-nXPj", job, "--format=State,NodeList") or ""
        state, _, hosts = kept.strip().partition("|")
        said = f"JobState={state.split()[0]} NodeList={hosts}" if state else None
    end = parse_end(said)
    return f"job {job}: {end.what}; {end.words}" if end else f"job {job} ended"


def parse_lines(said: str, first: str) -> list[dict[str, str]]:
    """The fields of each line of ``scontrol --oneliner show``.

    Args:
        said: the output.
        first: the first field, such as ``NodeName``; other lines are left out.
    """
    # Texts of administrators, which may contain anything, come last: the first field of
    # a name counts.
    return [
        dict(reversed(re.findall(r"(?<!\S)(\w+)=(\S*)", line)))
        for line in said.splitlines()
        if line.startswith(f"{first}=")
    ]


def minutes_of(limit: str) -> float:
    """A time limit as Slurm writes it, in minutes; infinite if there is none."""
    # [DAYS-]HOURS:MINUTES:SECONDS; another word is no limit.
    found = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", limit)
    if found is None:
        return math.inf
    days, hours, minutes, _ = (int(number or 0) for number in found.groups())
    return 60 * (24 * days + hours) + minutes


def comment_of(experiment: str, job: str) -> str:
    """The comment in the queue of a job; that of a single cell has the cell's id."""
    # The plugin's comment on a rule with two wildcards: see workflow/rules/measure.smk.
    return f"rule_job_wildcards_{experiment}_{job}"


_FORMAT = "%i|%T|%N|%r|%Z|%k"


def parse_queue(
    said: str, experiment: str, folder: str, jobs: Mapping[str, Sequence[str]]
) -> list[CellJob]:
    """The jobs of `read_queue` among the lines of squeue."""
    of = {comment_of(experiment, name): cells for name, cells in jobs.items()}
    found = []
    for line in said.splitlines():
        if line.count("|") < 5:
            continue  # with several clusters, their names
        job, state, hosts, why, where, comment = line.split("|", maxsplit=5)
        if os.path.realpath(where) == folder:
            for cell in of.get(comment.strip(), ()):
                found.append(CellJob(job, cell, state, hosts, why))
    return found
