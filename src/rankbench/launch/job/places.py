"""Where a job's launches run, and what it must bring there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rankbench.cell import Topology
from rankbench.launch.hosts import hosts_of
from rankbench.launch.hosts.base import Hosts, Needs, machine_to_itself
from rankbench.launch.hosts.slurm import comment_of
from rankbench.launch.hosts.slurm_resources import plan_array
from rankbench.launch.job.attempt import Attempt
from rankbench.launch.launchers import find_launcher, is_array
from rankbench.launch.process import processes
from rankbench.launch.process.environment import SOURCE


@dataclass(frozen=True, slots=True)
class Places:
    """The hosts that a job has for itself.

    Attributes:
        choose: attempt, number of the round from 0 -> the hosts of a launch.
        devices: those that the job holds, idle ones too; None if only the cell's.
    """

    choose: Callable[[Attempt, int], Hosts]
    devices: int | None = None


@contextmanager
def find_places(
    attempts: Sequence[Attempt],
    plan: dict[str, Any],
    *,
    told_to_stop: Callable[[], None],
    say: Callable[[str], None],
) -> Iterator[Places]:
    """A context in which a job has its hosts, and nothing else measures there.

    Args:
        attempts: what the job measures; at least one.
        plan: the plan.
        told_to_stop: raises if waiting must end.
        say: gets lines of progress.

    Raises:
        ValueError: it lacks what a cell needs, or a host cannot be used.
    """
    if is_array(find_launcher(attempts[0].cell.launcher)):
        with machine_to_itself(say=say, told_to_stop=told_to_stop):
            yield Places(lambda attempt, _: _array_of(attempt, plan))
        return
    nodes = max(attempt.shape.nodes for attempt in attempts)
    site, needs = plan["site"], _needs_of(attempts)
    opened = hosts_of(site).open(site, nodes, needs, say=say, told_to_stop=told_to_stop)
    with opened as hosts:
        for helper in hosts.helpers:
            processes.spare(helper)
        # Launches of one cell alone are on the same hosts.
        shared = len(attempts) > 1

        def choose(attempt: Attempt, turn: int) -> Hosts:
            return hosts.choose(attempt.shape.nodes, turn if shared else 0)

        devices = hosts.held * _devices_per_node(attempts)
        yield Places(choose, devices if shared and devices else None)


def _needs_of(attempts: Sequence[Attempt]) -> Needs:
    images = [one.image for one in attempts if one.image is not None]
    files = {one.data_dir / f"{one.cell.data}.npz" for one in attempts}
    return Needs(
        source=SOURCE,
        code=attempts[0].code["rank"],
        data_dir=attempts[0].data_dir,
        data=sorted(path for path in files if path.exists()),
        # Without a hash the image is unusable; its launches say why.
        images={one["file"]: one["sha256"] for one in images if one["sha256"]},
        own=sorted({file.parent for one in attempts for file in one.own.values()}),
        native=len(images) < len(attempts),
    )


def _devices_per_node(attempts: Iterable[Attempt]) -> int:
    topologies = (Topology.parse(attempt.cell.topology) for attempt in attempts)
    return max(topology.devices_per_node for topology in topologies)


def _array_of(attempt: Attempt, plan: dict[str, Any]) -> Hosts:
    experiment = plan["experiment"]
    return plan_array(
        attempt.cell,
        attempt.shape,
        plan["site"],
        time_limit=experiment["time_limit"],
        start_within=experiment["start_within"],
        comment=comment_of(experiment["name"], attempt.id),
    )
