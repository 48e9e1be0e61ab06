"""Never two measurements at once on one machine, whatever runs started them."""

from __future__ import annotations

import errno
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

ASK_SECONDS = 0.5


@contextmanager
def machine_to_itself(
    *, told_to_stop: Callable[[], None], say: Callable[[str], None]
) -> Iterator[None]:
    """Wait for this user's other measurements on this machine, then keep them waiting.

    Args:
        told_to_stop: raises where waiting is to end.
        say: gets a line if there is something to wait for.
    """
    told = False
    # Given up by the kernel with the process, however it ends.
    while (release := _take(f"rankbench-{os.getuid()}")) is None:
        if not told:
            say("  waiting: another measurement runs on this machine")
            told = True
        told_to_stop()
        time.sleep(ASK_SECONDS)
    try:
        yield
    finally:
        release()


def _take(name: str) -> Callable[[], None] | None:
    """What gives the lock up again; None while another process has it.

    On Linux it is the abstract name of a socket. A file below TMPDIR or /tmp would be
    another one for each TMPDIR, and for each job whose /tmp Slurm makes private.
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
