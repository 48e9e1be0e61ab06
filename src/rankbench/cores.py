"""CPU cores and processes, as Linux tells of them. Standard library only."""

from __future__ import annotations

import os
from pathlib import Path

_SYSTEM = Path("/sys/devices/system/cpu")


def physical_cores(
    cpus: set[int] | None = None, system: Path = _SYSTEM
) -> list[list[int]]:
    """The CPUs of this process grouped by physical core, in ascending order.

    Hardware threads of one core form one group, because ranks on them would share it.
    """
    allowed = os.sched_getaffinity(0) if cpus is None else cpus
    cores: dict[tuple[int, int], list[int]] = {}
    for cpu in sorted(allowed):
        cores.setdefault(_core_of(cpu, system), []).append(cpu)
    return list(cores.values())


def _core_of(cpu: int, system: Path) -> tuple[int, int]:
    topology = system / f"cpu{cpu}" / "topology"
    try:
        package = int((topology / "physical_package_id").read_text())
        return package, int((topology / "core_id").read_text())
    except (OSError, ValueError):
        return -1, cpu  # unknown on some virtual machines: count each CPU as a core


def read_stat(pid: int | str | None) -> list[str]:
    """Fields of a process from the third on, its state: field N of proc(5) is N - 3.

    Raises:
        FileNotFoundError, ProcessLookupError: the process is no more.
    """
    # The name before them may contain anything but ")".
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
