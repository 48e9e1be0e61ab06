"""Opens the hosts of a site: this machine, those of a Slurm job, or others by ssh.

Only this module chooses by the scheduler of a site.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from rankbench.launch.hosts.base import Hosts
from rankbench.launch.hosts.machine_lock import Waiting, machine_to_itself
from rankbench.launch.hosts.slurm import SlurmJob, choose_hosts, find_slurm_job
from rankbench.launch.hosts.ssh_connections import connected, inspected
from rankbench.launch.hosts.ssh_copies import Needs
from rankbench.launch.hosts.this_machine import ThisMachine
from rankbench.schedulers import scheduler_of


@dataclass(frozen=True, slots=True)
class Opened:
    """Hosts that a job has for itself.

    Attributes:
        choose: number of hosts, number of the round from 0 -> the hosts of a launch.
        held: how many hosts the job occupies, whether it uses them or not; 0 if only
            those of a launch count.
    """

    choose: Callable[[int, int], Hosts]
    held: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """What a job wants.

    Attributes:
        site: of the plan.
        nodes: the most hosts that a launch uses.
        needs: what must be on the hosts.
        waiting: how it waits until nothing else measures there.
    """

    site: Mapping[str, Any]
    nodes: int
    needs: Needs
    waiting: Waiting


def open_hosts(request: Request) -> AbstractContextManager[Opened]:
    """Return a context in which a job has its hosts, and nothing else measures there.

    Raises:
        ValueError: the job lacks hosts, or one of them cannot be used.
    """
    return _OPEN[request.site["scheduler"]](request)


@contextmanager
def _this_machine(request: Request) -> Iterator[Opened]:
    here = ThisMachine()
    with machine_to_itself(request.waiting):
        yield Opened(lambda *_: here)


@contextmanager
def _slurm_job(request: Request) -> Iterator[Opened]:
    with machine_to_itself(request.waiting):
        job = find_slurm_job(request.nodes)

        def choose(nodes: int, turn: int) -> SlurmJob:
            return replace(job, names=choose_hosts(job.names, nodes, turn))

        yield Opened(choose, len(job.names))


@contextmanager
def _hosts_by_ssh(request: Request) -> Iterator[Opened]:
    names = [host["name"] for host in request.site["hosts"]][: request.nodes]
    # The agents on the hosts hold the locks, since this machine need not be one.
    with connected(request.site, names, request.needs, request.waiting) as connections:
        yield Opened(lambda nodes, _: connections.hosts(names[:nodes]))


@contextmanager
def inspect_hosts(request: Request) -> Iterator[tuple[Hosts | None, list[str]]]:
    """A context in which hosts can be inspected, without waiting for measurements.

    Yields:
        The hosts that can be used (None if there are none), and what is wrong with the
        others, each with its remedy.

    Raises:
        ValueError: this process is in no Slurm job, or the job lacks hosts.
    """
    scheduler = scheduler_of(request.site)
    if scheduler.lists_hosts:
        with inspected(request.site, request.needs, request.waiting) as (found, faults):
            names = list(found.by_name)
            yield (found.hosts(names) if names else None), faults
    elif scheduler.has_queue:
        yield find_slurm_job(request.nodes), []
    else:
        yield ThisMachine(), []


_OPEN: dict[str, Callable[[Request], AbstractContextManager[Opened]]] = {
    "none": _this_machine,
    "ssh": _hosts_by_ssh,
    "slurm": _slurm_job,
}
