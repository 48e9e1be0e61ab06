"""Apptainer 1.4 spins on a core, for nothing, from the end of debootstrap on.

Whatever the build does then has one core less. The thread that spins cannot be stopped
without the build, but it can be told that all else comes first.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

LOOK_SECONDS = 2.0
BUSY = 0.2  # of the time between two looks; Apptainer itself mostly waits
LAST = 19


@contextmanager
def spinning_steps_back(program: str) -> Iterator[None]:
    """While this holds, busy threads of that program among our children yield."""
    ended = threading.Event()
    watch = threading.Thread(target=_watch, args=(program, ended), daemon=True)
    watch.start()
    try:
        yield
    finally:
        ended.set()
        watch.join()


def _watch(program: str, ended: threading.Event) -> None:
    seen: dict[int, float] = {}
    while not ended.wait(LOOK_SECONDS):
        for process in psutil.Process().children(recursive=True):
            try:
                if process.name() == program:
                    _look(process, seen)
            except (psutil.Error, ProcessLookupError):
                continue  # it ended meanwhile


def _look(process: psutil.Process, seen: dict[int, float]) -> None:
    for thread in process.threads():
        busy = thread.user_time + thread.system_time
        before, seen[thread.id] = seen.get(thread.id, busy), busy
        if busy - before > BUSY * LOOK_SECONDS:
            os.setpriority(os.PRIO_PROCESS, thread.id, LAST)
