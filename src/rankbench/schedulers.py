"""Where a site gets its hosts from, and what follows from that in all rooms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduler:
    """A value of the key ``scheduler`` of a site file.

    Attributes:
        name: the value.
        hosts: ``MODULE:CLASS`` below `rankbench.launch.hosts`.
        has_queue: whether each job of Snakemake waits in a queue for hosts of its own.
            Otherwise one job measures all cells on the same hosts.
        has_hosts: whether cells run on other hosts than the one that plans them. Then
            the site file describes the hosts.
        lists_hosts: whether it names each of them.
        launcher: what `launcher: auto` means there, where it is possible.
        extra: the extra of rankbench that installs its plugin of Snakemake.
    """

    name: str
    hosts: str
    has_queue: bool = False
    has_hosts: bool = True
    lists_hosts: bool = False
    launcher: str | None = None
    extra: str | None = None


_ALL = (
    Scheduler(name="none", hosts="base:ThisMachine", has_hosts=False),
    Scheduler(name="ssh", hosts="ssh:SshHosts", lists_hosts=True),
    Scheduler(
        name="slurm",
        hosts="slurm:SlurmJob",
        has_queue=True,
        launcher="srun",
        extra="slurm",
    ),
)
SCHEDULERS = {scheduler.name: scheduler for scheduler in _ALL}


def seconds_between_looks(least: float, quiet: float) -> float:
    """Return how long to wait before Slurm is asked again.

    Controllers of busy clusters suffer from frequent questions. A delay of a twentieth
    of what has been waited for already is not noticed.

    Args:
        least: seconds; for a job that has just started.
        quiet: seconds since a job has last started or ended.
    """
    return max(least, min(60.0, 0.05 * quiet))


def scheduler_of(site: Mapping[str, Any]) -> Scheduler:
    """Return the scheduler of a plan's site; a site that names none has none."""
    return SCHEDULERS[site.get("scheduler", "none")]
