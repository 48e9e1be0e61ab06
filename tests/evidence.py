"""No reason without evidence: what holds for the record of every launch that failed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

_LINE = re.compile(r"\w[\w.-]*\.py:\d+ in ")
_LEAST, _MOST = 4, 100  # characters of a line that must be quoted


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
