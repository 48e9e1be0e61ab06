"""What a launch leaves: where its ranks are, and a record whose reason has evidence."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from rankbench.launch.process.reports import are_all_in, read_progress

_LINE = re.compile(r"\w[\w.-]*\.py:\d+ in ")
_LEAST, _MOST = 4, 100  # characters of a line that must be quoted


def trains(launch: Path, ranks: int = 2) -> bool:
    """Whether all ranks of a launch have entered its steps, and it has not ended."""
    try:
        return are_all_in("training", read_progress(launch / "work/progress", ranks))
    except FileNotFoundError:
        return False  # Its folder goes with its end.


def read_record(path: Path) -> dict[str, Any]:
    """A record; if its launch failed, its reason quotes code or printed words.

    A launch that was cancelled did not fail: nothing that ranks printed is its reason.

    Raises:
        AssertionError: it quotes neither, although ranks printed something.
    """
    record: dict[str, Any] = json.loads(path.read_text())
    reason = record["reason"]
    if reason is None or record["status"] == "cancelled" or _LINE.search(reason):
        return record
    logs = [log.read_text(errors="replace") for log in path.parent.glob("rank*.log")]
    of_launcher = path.with_name("launcher.log")
    said = of_launcher.read_text(errors="replace") if of_launcher.exists() else ""
    printed = [line.strip() for log in (*logs, said) for line in log.splitlines()]
    quoted = [
        line for line in printed if len(line) >= _LEAST and line[:_MOST] in reason
    ]
    assert quoted or not any(logs), f"{reason}: no line of {path.parent}/rank*.log"
    return record
