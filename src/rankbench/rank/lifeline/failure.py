"""What a rank leaves behind when it fails."""

from __future__ import annotations

import errno
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from rankbench.rank.lifeline.watch import HeartbeatLost


def report_failure(work: Path, rank: int, error: BaseException) -> None:
    """Say it in the log, and in a file: what a rank printed last may not arrive.

    A report that is there already stays: what the rank measured is whole.
    """
    traceback.print_exception(error)
    sys.stderr.flush()
    path = work / f"rank{rank}.json"
    if path.exists():
        return
    message = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        # Which disk it was Python does not say where a file was open already.
        place = os.environ.get("TMPDIR", "/tmp")  # noqa: S108
        message += f" (on the host {os.uname().nodename}; TMPDIR is {place})"
    report: dict[str, Any] = {
        "error": {
            "type": type(error).__name__,
            "message": message,
            "oom": is_out_of_memory(error),
            "cause": error.cause if isinstance(error, HeartbeatLost) else None,
        }
    }
    path.write_text(json.dumps(report))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device's or the host's memory did not suffice.

    The host's allocator raises a plain RuntimeError, so its words must be looked at.
    """
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    words = ("can't allocate memory", "cannot allocate memory", "out of memory")
    return any(word in str(error).lower() for word in (*words, "bad_alloc"))
