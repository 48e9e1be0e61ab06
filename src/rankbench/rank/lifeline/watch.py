"""Ends a rank when the heartbeat stops, so that no rank outlives its supervisor."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from rankbench.rank.lifeline.progress import Progress

ORPHANED = 97  # exit code of a rank that ended itself
LOOKS = 5  # number of looks at the heartbeat within the grace period
ASKS = "?"  # ends a heartbeat that asks where this rank is
LAST_WORDS = 5.0  # seconds for the report, whose file system may be down as well


class HeartbeatLost(TimeoutError):
    """The supervisor's heartbeat has stopped, because it is dead or late.

    `cause` is one of the causes in record.py.
    """

    cause = "site"

    def __init__(self, grace: float) -> None:
        super().__init__(
            f"no heartbeat of the supervisor for {grace:g} s "
            "(its host is overloaded, or a shared file system stands still)"
        )


def watch_heartbeat(
    path: Path,
    grace: float,
    report: Callable[[BaseException], None],
    progress: Progress,
) -> None:
    """Start a thread that ends this process after `grace` seconds without a beat.

    Args:
        path: file of the heartbeat.
        grace: grace period in seconds.
        report: writes the reason, in case the supervisor is alive after all.
        progress: is told when the supervisor asks where this rank is.
    """
    arguments = (path, grace, report, progress)
    thread = threading.Thread(
        target=_watch, args=arguments, daemon=True, name="heartbeat"
    )
    thread.start()


def _watch(
    path: Path,
    grace: float,
    report: Callable[[BaseException], None],
    progress: Progress,
) -> None:
    last, unchanged = "", 0
    while True:
        time.sleep(grace / LOOKS)
        try:
            # Read instead of stat, because shared file systems cache attributes.
            beat = path.read_text()
        except OSError:
            beat = last
        # Count looks instead of seconds: while a machine is suspended, time passes but
        # the supervisor cannot beat.
        unchanged = unchanged + 1 if beat == last else 0
        last = beat
        # A disk that is full or gone must not end this thread.
        with contextlib.suppress(OSError):
            progress.look(int(beat[:-1]) if beat.endswith(ASKS) else 0)
        if unchanged >= LOOKS:
            threading.Timer(LAST_WORDS, os._exit, (ORPHANED,)).start()
            try:
                report(HeartbeatLost(grace))
            finally:
                os._exit(ORPHANED)
