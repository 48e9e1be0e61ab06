"""Writes the report of a rank that fails."""

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
    """Write an error to the log and to the rank's report file.

    The file is needed because the last output of a rank may get lost. A report that
    exists already is kept, because its measurement is complete.
    """
    traceback.print_exception(error)
    sys.stderr.flush()
    path = work / f"rank{rank}.json"
    if path.exists():
        return
    message = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        # Python does not name the file if it was already open.
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
    """Whether an error says that a device or the host is out of memory.

    torch's host allocator raises a plain RuntimeError, so the message decides.
    """
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    words = ("can't allocate memory", "cannot allocate memory", "out of memory")
    return any(word in str(error).lower() for word in (*words, "bad_alloc"))
