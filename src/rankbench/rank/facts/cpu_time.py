"""CPU time of this process and of its loader processes."""

from __future__ import annotations

import multiprocessing
import os
import resource
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class CpuTime:
    """User and system time, in seconds.

    Attributes:
        own: time of this process, with all its threads.
        loaders: time of the processes that it started through multiprocessing.
    """

    own: float
    loaders: float

    def __sub__(self, earlier: CpuTime) -> CpuTime:
        return CpuTime(self.own - earlier.own, self.loaders - earlier.loaders)


def cpu_time() -> CpuTime:
    """The CPU time used so far; the call takes about ten microseconds."""
    living = [_of_process(child.pid) for child in multiprocessing.active_children()]
    own = resource.getrusage(resource.RUSAGE_SELF)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return CpuTime(
        own.ru_utime + own.ru_stime, ended.ru_utime + ended.ru_stime + sum(living)
    )


def _of_process(pid: int | None) -> float:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0  # the process has just ended
    # utime and stime: fields 14 and 15 of proc(5); field 3 is the first one after ")".
    ticks = sum(map(int, stat.rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")
