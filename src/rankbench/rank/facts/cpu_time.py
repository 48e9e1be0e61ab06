"""CPU time of this process and of the loader processes beside it."""

from __future__ import annotations

import multiprocessing
import os
import resource
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class CpuTime:
    """Seconds of user and system time.

    Attributes:
        own: of this process with all its threads.
        loaders: of the processes that it started through multiprocessing.
    """

    own: float
    loaders: float

    def __sub__(self, earlier: CpuTime) -> CpuTime:
        return CpuTime(self.own - earlier.own, self.loaders - earlier.loaders)


def cpu_time() -> CpuTime:
    """CPU time spent so far. Takes some ten microseconds."""
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
        return 0.0  # it has just ended
    # utime and stime: fields 14 and 15 of proc(5), counted from behind the name.
    ticks = sum(map(int, stat.rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")
