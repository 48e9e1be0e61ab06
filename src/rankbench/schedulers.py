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
        profile: folder of the profile for such a site.
        has_queue: whether each job of Snakemake waits in a queue for hosts of its own.
            Otherwise one job measures all cells on the same hosts.
        has_hosts: whether cells run on other hosts than the one that plans them. Then
            the site file describes the hosts.
        lists_hosts: whether it names each of them.
    """

    name: str
    profile: str
    has_queue: bool
    has_hosts: bool
    lists_hosts: bool = False


SCHEDULERS = {
    one.name: one
    for one in (
        Scheduler(
            name="none", profile="local_profile", has_queue=False, has_hosts=False
        ),
        Scheduler(
            name="ssh",
            profile="ssh_profile",
            has_queue=False,
            has_hosts=True,
            lists_hosts=True,
        ),
        Scheduler(
            name="slurm", profile="slurm_profile", has_queue=True, has_hosts=True
        ),
    )
}


def scheduler_of(site: Mapping[str, Any]) -> Scheduler:
    """Return the scheduler of a plan's site; a site that names none has none."""
    return SCHEDULERS[site.get("scheduler", "none")]
