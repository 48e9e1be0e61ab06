"""Never two measurements at once on one machine, whatever runs started them."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def machine_to_itself(
    *, told_to_stop: Callable[[], None], say: Callable[[str], None]
) -> Iterator[None]:
    """Wait for this user's other measurements on this machine, then keep them waiting.

    Args:
        told_to_stop: raises where waiting is to end.
        say: gets a line if there is something to wait for.
    """
    path = Path(tempfile.gettempdir()) / f"rankbench-{os.getuid()}.lock"
    # Given up by the kernel with the process, however it ends.
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        told = False
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    say("  waiting: another measurement runs on this machine")
                    told = True
                told_to_stop()
                time.sleep(0.5)
        yield
    finally:
        os.close(handle)
