"""The interface to the hosts of a launch."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rankbench.environ import job_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """How a command runs on the hosts.

    Attributes:
        logs: a folder for its output, if that needs files.
        tasks_per_host: how often it runs on each host.
        mpi: whether its tasks are the ranks of an MPI program.
        shares_cores: whether there are fewer cores than tasks.
        first_host_only: whether the command reaches the other hosts by itself.
    """

    logs: Path
    tasks_per_host: int = 1
    mpi: bool = False
    shares_cores: bool = False
    first_host_only: bool = False


class Hosts(ABC):
    """The hosts of a launch: this machine, others by ssh, or those of a Slurm job.

    The defaults are for hosts on which the supervisor itself ends all processes.

    Attributes:
        names: the hosts, that of rank 0 first; empty if they are not known before the
            launch.
        start_within: seconds that the hosts have to start after the launch begins.
        share_files: whether other hosts read the supervisor's heartbeat.
        end_within: seconds that the command of `step` gets to end everything itself,
            before the supervisor ends its processes.
        is_here: whether the supervisor runs on the first host.
        has_ssh: whether hosts reach each other by ssh.
    """

    names: tuple[str, ...]
    start_within: float
    share_files = True
    end_within = 0.0
    is_here = True
    has_ssh = False

    @abstractmethod
    def step(self, argv: Sequence[str], how: Step) -> list[str]:
        """Return the command that runs a command on every host."""

    def port(self, serial: int) -> int:
        """Return the port at which the ranks of a launch meet; 0 for any free one.

        Args:
            serial: differs between launches that follow each other.
        """
        return 0

    def variables(self, inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Return the environment variables that the command of `step` needs."""
        return {}

    def list_steps(self) -> set[str] | None:
        """Return the ids of what runs on the hosts now; None if that is unknown."""
        return None

    def end_steps(self, before: set[str] | None) -> None:
        """End what a launch left on the hosts, and wait until it has ended.

        Args:
            before: the result of `list_steps` before the launch.
        """
        return

    def why_ended(self) -> str | None:
        """Return why the hosts are taken away.

        It is ``timeout``, ``host``, ``cancelled``, or ``over``: the job ended before.

        Returns:
            None if they are not.
        """
        return None

    def find_lost(self) -> str | None:
        """Return a host that no longer answers; None if all do, or if it is unknown."""
        return None

    def find_job(self, log: str) -> str | None:
        """Return the id of the job that a launch ran in; None without one.

        Args:
            log: the output of the launcher.
        """
        return job_id()
