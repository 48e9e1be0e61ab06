"""What launches leave: where ranks are, rows, records whose reasons have evidence."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

from rankbench.launch.process.reports import are_all_in, read_progress
from rankbench.record import complete

_LINE = re.compile(r"\w[\w.-]*\.py:\d+ in ")
_LEAST, _MOST = 4, 100  # characters of a line that must be quoted


def read_table(root: Path, name: str) -> dict[str, dict[str, str]]:
    """Rows of the table of an experiment of a project, by cell."""
    with open(root / f"results/{name}/table.csv") as file:
        return {row["cell"]: row for row in csv.DictReader(file)}


def read_records(root: Path, name: str) -> dict[str, list[dict[str, Any]]]:
    """Records of the first attempt by cell, in the order of their launches."""
    found: dict[str, list[dict[str, Any]]] = {}
    paths = root.glob(f"results/{name}/records/*/1/*/record.json")
    for path in sorted(paths, key=lambda path: int(path.parent.name)):
        found.setdefault(path.parts[-4], []).append(complete(read_record(path)))
    return found


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
