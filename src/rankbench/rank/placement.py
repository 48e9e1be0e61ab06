"""Which CPU cores a rank may use: disjoint sets within the affinity it was given."""

from __future__ import annotations

import os
from pathlib import Path

_SYSTEM = Path("/sys/devices/system/cpu")


def physical_cores(
    cpus: set[int] | None = None, system: Path = _SYSTEM
) -> list[list[int]]:
    """CPUs of this process grouped by physical core, in ascending order.

    Two hardware threads of one core are one core: ranks on them would share it.
    """
    allowed = os.sched_getaffinity(0) if cpus is None else cpus
    cores: dict[tuple[int, int], list[int]] = {}
    for cpu in sorted(allowed):
        cores.setdefault(_core_of(cpu, system), []).append(cpu)
    return list(cores.values())


def choose_cores(
    local_rank: int, cores_per_rank: int, cores: list[list[int]]
) -> list[list[int]]:
    """Cores of one rank of a host; more ranks than cores share them in turn."""
    first = local_rank * cores_per_rank
    return [cores[(first + i) % len(cores)] for i in range(cores_per_rank)]


def pin(cores: list[list[int]]) -> None:
    """Bind this process, with the threads it already has, to these cores."""
    cpus = {cpu for core in cores for cpu in core}
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), cpus)


def _core_of(cpu: int, system: Path) -> tuple[int, int]:
    topology = system / f"cpu{cpu}" / "topology"
    try:
        package = int((topology / "physical_package_id").read_text())
        return package, int((topology / "core_id").read_text())
    except (OSError, ValueError):
        return -1, cpu  # not told (some virtual machines): each CPU is a core
