"""A rank must not outlive its supervisor: it ends itself when the heartbeat stops."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

ORPHANED = 97  # exit code of a rank that ended itself
LOOKS = 5  # within the time of grace
LAST_WORDS = 5.0  # seconds for them: where they are written may have failed as well


class HeartbeatLost(TimeoutError):
    """The supervisor is not heard, dead or late. `cause`: see record.py."""

    cause = "site"

    def __init__(self, grace: float) -> None:
        super().__init__(
            f"no heartbeat of the supervisor for {grace:g} s "
            "(its host is overloaded, or a shared file system stands still)"
        )


def watch_heartbeat(
    path: Path, grace: float, report: Callable[[BaseException], None]
) -> None:
    """Start a thread that ends this process after `grace` seconds without a beat.

    Args:
        path: of the heartbeat.
        grace: seconds.
        report: tells why, to a supervisor that lives after all.
    """
    thread = threading.Thread(
        target=_watch, args=(path, grace, report), daemon=True, name="heartbeat"
    )
    thread.start()


def _watch(path: Path, grace: float, report: Callable[[BaseException], None]) -> None:
    last, unchanged = "", 0
    while True:
        time.sleep(grace / LOOKS)
        try:
            # Read, not stat: a shared file system keeps attributes in a cache.
            beat = path.read_text()
        except OSError:
            beat = last
        # Looks are counted, not seconds: a machine that was suspended has let time pass
        # in which the supervisor could not beat either.
        unchanged = unchanged + 1 if beat == last else 0
        last = beat
        if unchanged >= LOOKS:
            threading.Timer(LAST_WORDS, os._exit, (ORPHANED,)).start()
            try:
                report(HeartbeatLost(grace))
            finally:
                os._exit(ORPHANED)
