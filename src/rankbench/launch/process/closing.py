"""The end of a launch: its record, which never changes again."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rankbench.environ import job_id
from rankbench.launch.process.classify import Finding
from rankbench.launch.task import Task
from rankbench.record import RECORD_VERSION, UNCLEAN_END, Record, write_json

ROOM_FOR_A_RECORD = 64 * 1024  # bytes


def begin_record(task: Task, finding: Finding, started: datetime) -> Record:
    """What every record has, however its launch ended."""
    return {
        "schema": RECORD_VERSION,
        "experiment": task.experiment,
        "cell_id": task.cell_id,
        "cell_hash": task.cell_hash,
        "cell": task.cell.to_dict(),
        "shape": task.shape.to_dict(),
        "attempt": task.attempt,
        "launch": task.number,
        "wanted": task.wanted,
        "status": finding.status,
        "reason": finding.reason,
        "cause": finding.cause,
        "started": started.isoformat(timespec="seconds"),
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        "marks": [*task.marks, *([UNCLEAN_END] if finding.parting else [])],
        "code": dict(task.code),
        "image": _describe(task.image) if task.image else None,
        "job_id": job_id(),
        "purpose": task.purpose,
        "gate": None if task.gate is None else dict(task.gate),
        **({"parting": finding.parting} if finding.parting else {}),
        **({} if task.rule is None else {"rule": dict(task.rule)}),
        **({} if task.turn is None else {"round": dict(task.turn)}),
    }


def _describe(image: Mapping[str, Any]) -> dict[str, Any]:
    """Where the file lies says nothing about what was measured in it."""
    return {key: image[key] for key in ("name", "recipe", "sha256")}


def close_dead_claim(task: Task, *, started: datetime) -> Record:
    """The record of a launch whose supervisor died without writing one."""
    finding = Finding(
        "cancelled", "its supervisor died before the launch ended", "owner"
    )
    record = begin_record(task, finding, started)
    finish(task.directory, record)
    return record


def finish(directory: Path, record: Record) -> None:
    """Write the record: from here on what was measured never changes again.

    The heartbeat goes last: without it another host could take the launch for dead.
    """
    write_json(directory / "record.json", record)
    shutil.rmtree(directory / "work", ignore_errors=True)


def refuse_full_disk(directory: Path) -> None:
    """A failure on a full disk says nothing about the cell: leave no record of it."""
    if shutil.disk_usage(directory).free < ROOM_FOR_A_RECORD:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(directory))
