"""A rank must not outlive its supervisor: it ends itself when the heartbeat stops."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

ORPHANED = 97  # exit code of a rank that ended itself
LOOKS = 5  # within the time of grace


def watch_heartbeat(path: Path, grace: float) -> None:
    """Start a thread that ends this process after `grace` seconds without a beat."""
    thread = threading.Thread(
        target=_watch, args=(path, grace), daemon=True, name="heartbeat"
    )
    thread.start()


def _watch(path: Path, grace: float) -> None:
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
            print("the supervisor is gone: this rank ends", file=sys.stderr, flush=True)
            os._exit(ORPHANED)
