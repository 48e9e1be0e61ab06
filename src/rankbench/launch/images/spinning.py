"""Lowers the priority of a useless busy thread of Apptainer 1.4.

From the end of debootstrap on, this thread keeps one core busy, so the build has a core
less. It cannot be stopped without stopping the build, but its priority can be lowered.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

LOOK_SECONDS = 2.0
BUSY = 0.2  # share of LOOK_SECONDS; other threads of Apptainer mostly wait
LAST = 19


@contextmanager
def spinning_steps_back(program: str) -> Iterator[None]:
    """Lower the priority of busy threads in child processes that run `program`."""
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
