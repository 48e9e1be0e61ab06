"""What others do on the CPUs of a rank during the timed window.

The kernel's counters of CPUs are read before and after the window, never within it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rankbench.rank.facts.usage import cpu_time
from rankbench.rank.world.lifeline import Progress

# A tick of 10 ms is 2 % of this: shares of a shorter window mean nothing.
_SHORTEST = 0.5  # seconds

# Of a line of /proc/stat: idle, iowait, irq and softirq. Interrupts may be the rank's.
_NOT_BUSY = slice(3, 7)
_STEAL = 7

_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


class _Counters(NamedTuple):
    """Counters at one moment, in seconds; `periods`: all, and throttled ones."""

    seconds: float
    own: float
    stopped: float
    idle: list[float]
    steal: list[float]
    periods: list[tuple[int, int]]


class Surroundings:
    """Reads the counters of the CPUs of this rank, and of its CPU quota."""

    def __init__(
        self, progress: Progress, proc: Path = _PROC, cgroups: Path = _CGROUPS
    ) -> None:
        """Take what to read.

        Args:
            progress: of this rank; it knows for how long its process stood still.
            proc, cgroups: where the kernel shows its counters.
        """
        self._progress, self._proc, self._cgroups = progress, proc, cgroups

    def begin(self) -> None:
        self._cpus = sorted(os.sched_getaffinity(0))
        self._groups = list(_find_groups(self._proc, self._cgroups))
        self._before = self._read()

    def end(self) -> dict[str, Any] | None:
        """What has happened since `begin`; None if the window was too short to tell.

        Returns:
            seconds; own (CPU seconds of this rank and its loaders); cpus; busy and
            steal (seconds of each of them); periods and throttled (of the group of this
            process that was throttled most); quota (CPUs that this process may use at
            once; None for no limit); stopped (seconds of suspension).
        """
        now, then = self._read(), self._before
        seconds = now.seconds - then.seconds
        if seconds < _SHORTEST:
            return None
        idle = [a - b for a, b in zip(now.idle, then.idle, strict=True)]
        steal = [a - b for a, b in zip(now.steal, then.steal, strict=True)]
        held = [
            (after[1] - before[1], after[0] - before[0])
            for after, before in zip(now.periods, then.periods, strict=True)
        ]
        throttled, periods = max(held, default=(0, 0))
        quotas = [quota for group in self._groups if (quota := _read_quota(group))]
        return {
            "seconds": seconds,
            "own": now.own - then.own,
            "cpus": self._cpus,
            "busy": [
                max(0.0, seconds - a - b) for a, b in zip(idle, steal, strict=True)
            ],
            "steal": steal,
            "periods": periods,
            "throttled": throttled,
            "quota": min(quotas, default=None),
            "stopped": now.stopped - then.stopped,
        }

    def _read(self) -> _Counters:
        idle, steal = _read_cpus(self._proc / "stat", self._cpus)
        periods = []
        for group in self._groups:
            lines = (group / "cpu.stat").read_text().splitlines()
            counts = dict(line.split() for line in lines)
            every, throttled = (
                int(counts.get(name, 0)) for name in ("nr_periods", "nr_throttled")
            )
            periods.append((every, throttled))
        return _Counters(
            seconds=time.perf_counter(),
            own=sum(cpu_time()),
            stopped=self._progress.stopped,
            idle=idle,
            steal=steal,
            periods=periods,
        )


def _read_cpus(file: Path, cpus: Sequence[int]) -> tuple[list[float], list[float]]:
    """Seconds in which each CPU had nothing to do, or was taken from this machine."""
    ticks = os.sysconf("SC_CLK_TCK")
    found = {}
    for line in file.read_text().splitlines():
        name, *values = line.split()
        if name.startswith("cpu") and name != "cpu":
            counts = [int(value) / ticks for value in values]
            found[name] = sum(counts[_NOT_BUSY]), counts[_STEAL]
    read = [found.get(f"cpu{cpu}", (0.0, 0.0)) for cpu in cpus]
    return [idle for idle, _ in read], [steal for _, steal in read]


def _find_groups(proc: Path, cgroups: Path) -> Iterator[Path]:
    """The control groups that limit the CPUs of this process, the innermost first."""
    for line in (proc / "self/cgroup").read_text().splitlines():
        _, controllers, name = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = cgroups / "cpu" if controllers else cgroups
        group = top / name.lstrip("/")
        # In a container, the name may be that of a group outside.
        for limit in (group, *group.parents):
            if (limit / "cpu.stat").exists() and limit.is_relative_to(top):
                yield limit


def _read_quota(group: Path) -> float | None:
    """CPUs that a group may use at once; None for no limit."""
    try:
        quota, period = (group / "cpu.max").read_text().split()
    except OSError:
        files = (group / f"cpu.cfs_{name}_us" for name in ("quota", "period"))
        quota, period = (
            file.read_text().strip() if file.exists() else "-1" for file in files
        )
    return None if quota in ("max", "-1") else int(quota) / int(period)
