"""A lock, so that two measurements never run on one machine at the same time."""

from __future__ import annotations

import errno
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

ASK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Waiting:
    """How a job waits for its hosts.

    Attributes:
        told_to_stop: raises if the waiting must end.
        say: gets lines of progress.
        spare: gets the process ids of connections, which outlast single launches.
    """

    told_to_stop: Callable[[], None]
    say: Callable[[str], None]
    spare: Callable[[int], None] = lambda pid: None


@contextmanager
def machine_to_itself(waiting: Waiting) -> Iterator[None]:
    """Wait for this user's other measurements on this machine, then hold the lock."""
    told = False
    # The kernel releases the lock with the process, however the process ends.
    while (release := _take(f"rankbench-{os.getuid()}")) is None:
        if not told:
            waiting.say("  waiting: another measurement runs on this machine")
            told = True
        waiting.told_to_stop()
        time.sleep(ASK_SECONDS)
    try:
        yield
    finally:
        release()


def _take(name: str) -> Callable[[], None] | None:
    """A function that releases the lock; None while another process holds it.

    On Linux the lock is the abstract name of a socket. A lock file below TMPDIR or /tmp
    would differ with each TMPDIR and each private /tmp of a Slurm job.
    """
    if sys.platform == "linux":
        return _take_socket(name)
    return _take_file(Path(tempfile.gettempdir()) / f"{name}.lock")


def _take_socket(name: str) -> Callable[[], None] | None:
    held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        held.bind(f"\0{name}")
    except OSError as error:
        held.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    return held.close


def _take_file(path: Path) -> Callable[[], None] | None:
    lock = FileLock(path, mode=0o600)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return None
    return lock.release
