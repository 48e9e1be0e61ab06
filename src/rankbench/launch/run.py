"""The launches that an attempt of a cell still lacks, one after the other."""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from rankbench.cell import Cell, Shape
from rankbench.launch.claim import claim_next, open_claims, read_owner
from rankbench.launch.code import describe_code
from rankbench.launch.requests import Request, read_request
from rankbench.launch.supervise import Stop, Task, close_dead_claim, run_launch
from rankbench.record import (
    CHANGED_CELL,
    Layout,
    Record,
    Verdict,
    judge,
    read_attempt,
    read_json,
    write_json,
)

Entry = dict[str, Any]


class Interrupted(Exception):
    """This process was told to end; what is missing is left to the next run."""


class Out:
    """Progress for people: on the terminal and in the log of the cell."""

    def __init__(self, *streams: TextIO) -> None:
        self._streams = streams

    def say(self, text: str) -> None:
        for stream in self._streams:
            print(text, file=stream, flush=True)


def run_cell(layout: Layout, cell_id: str, *, project: Path, out: Out) -> Verdict:
    """Launch what is missing of the wanted attempt, then write the summary.

    It can be called again at any time: with nothing missing it only writes the summary.

    Args:
        layout: the result directory.
        cell_id: a feasible cell of its plan.
        project: the folder that a relative data_dir is below.
        out: where progress goes.

    Raises:
        Interrupted: a signal came, or the process that started this one died.
        ValueError: no such cell or no request for it; a file of the run is damaged.
        OSError: a record could not be written.
    """
    plan = read_json(layout.plan)
    entry = _find(plan, cell_id, layout)
    request = read_request(layout, cell_id)
    if request is None:
        raise ValueError(f"{layout.request(cell_id)} is missing: run snakemake")
    attempt_dir = layout.attempt(cell_id, request.attempt)
    if request.cell_hash != entry["hash"]:
        verdict = _stale(request, attempt_dir)
    else:
        with Stop().listening() as stop, _machine_to_itself(out, stop):
            verdict = _launch_missing(
                plan, entry, request, attempt_dir, stop, out, project
            )
    records = read_attempt(attempt_dir)
    write_json(layout.summary(cell_id), _summarise(cell_id, request, verdict, records))
    return verdict


def _launch_missing(
    plan: Entry,
    entry: Entry,
    request: Request,
    attempt_dir: Path,
    stop: Stop,
    out: Out,
    project: Path,
) -> Verdict:
    """Launch until the attempt is complete."""
    code = describe_code()

    def task(number: int, directory: Path) -> Task:
        site = plan["site"]
        cell, shape = Cell.from_dict(entry["cell"]), Shape(**entry["shape"])
        return Task(
            experiment=plan["experiment"]["name"],
            cell_id=entry["id"],
            cell_hash=entry["hash"],
            cell=cell,
            shape=shape,
            phases=entry["phases"],
            marks=entry["marks"],
            attempt=request.attempt,
            number=number,
            wanted=request.launches,
            directory=directory.resolve(),
            data_dir=(project / site["data_dir"]).resolve(),
            time_limit=plan["experiment"]["time_limit"],
            threads=_threads(shape, site),
            code=code,
        )

    pace = _Pace(attempt_dir.parents[2], entry["id"])
    while True:
        _settle_claims(attempt_dir, task, stop, out)
        verdict = judge(read_attempt(attempt_dir), request.launches)
        if verdict.complete:
            return verdict
        if stop.reason():
            raise Interrupted(stop.reason())
        number, directory = claim_next(attempt_dir)
        begun = time.monotonic()
        record = run_launch(task(number, directory), stop)
        pace.add(time.monotonic() - begun)
        done = judge(read_attempt(attempt_dir), request.launches)
        out.say(pace.line(record, done))
        if record["cause"] in ("user", "owner"):
            raise Interrupted(record["reason"])


def _threads(shape: Shape, site: Entry) -> int:
    """CPU threads of a rank: one per core of its device, or its share of the host."""
    share = max(1, site["cores"] // shape.ranks_per_node)
    return int(shape.cores_per_rank or site["cpu_threads_per_gpu"] or share)


def _settle_claims(attempt_dir: Path, task: Any, stop: Stop, out: Out) -> None:
    """Wait for launches that others are measuring; close those whose owner is dead."""
    told = False
    while claims := open_claims(attempt_dir):
        for number, directory in claims:
            if read_owner(directory).is_alive(directory):
                continue
            claimed = (directory / "claim.json").stat().st_mtime
            close_dead_claim(
                task(number, directory), started=datetime.fromtimestamp(claimed, UTC)
            )
            out.say(f"  launch {number} was left unfinished: it is measured anew")
        if open_claims(attempt_dir):
            if not told:
                out.say("  waiting for a launch that another process measures")
                told = True
            if stop.reason():
                raise Interrupted(stop.reason())
            time.sleep(1)


class _Pace:
    """How fast this run proceeds, and how much of it is left."""

    def __init__(self, root: Path, cell_id: str) -> None:
        self._cell_id = cell_id
        self._seconds: list[float] = []
        self._others = _launches_elsewhere(Layout(root), cell_id)

    def add(self, seconds: float) -> None:
        self._seconds.append(seconds)

    def line(self, record: Record, verdict: Verdict) -> str:
        done = len(self._seconds)
        left = self._others + max(0, verdict.wanted - verdict.ok)
        if verdict.complete:
            left = self._others
        mean = sum(self._seconds) / done
        parts = [
            f"{self._cell_id}  launch {record['launch']}",
            f"{verdict.ok}/{verdict.wanted} ok",
            self._result(record),
            f"{self._seconds[-1]:.1f} s",
        ]
        if left:
            parts.append(f"{left} launches left, about {minutes(left * mean)}")
        return "  ".join(parts)

    def _result(self, record: Record) -> str:
        if record["status"] != "ok":
            return f"{record['status']}: {record['reason']}"
        window = max(rank["window_s"] for rank in record["ranks"])
        return f"{record['samples'] / window:.0f} samples/s"


def _launches_elsewhere(layout: Layout, cell_id: str) -> int:
    """Launches of this run's other cells that are still to come."""
    try:
        agenda = read_json(layout.agenda)
    except (OSError, ValueError):
        return 0
    left = 0
    for other, launches in agenda["launches"].items():
        summary, request = layout.summary(other), layout.request(other)
        if other == cell_id:
            continue
        done = (
            summary.exists()
            and request.exists()
            and summary.stat().st_mtime >= request.stat().st_mtime
        )
        left += 0 if done else launches
    return left


def minutes(seconds: float) -> str:
    """A duration for people."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _find(plan: Entry, cell_id: str, layout: Layout) -> Entry:
    for entry in plan["cells"]:
        if entry["id"] == cell_id:
            if entry["infeasible"]:
                raise ValueError(f"{cell_id} cannot run here: {entry['infeasible']}")
            return dict(entry)
    raise ValueError(f"{layout.plan} has no cell {cell_id}")


def _stale(request: Request, attempt_dir: Path) -> Verdict:
    done = judge(read_attempt(attempt_dir), request.launches)
    return Verdict("stale", CHANGED_CELL, done.ok, request.launches, complete=True)


def _summarise(
    cell_id: str, request: Request, verdict: Verdict, records: list[Record]
) -> dict[str, Any]:
    seconds = [r["seconds"]["launch"] for r in records if r["status"] == "ok"]
    return {
        "cell": cell_id,
        **asdict(request),
        "status": verdict.status,
        "reason": verdict.reason,
        "launches_ok": verdict.ok,
        "launch_seconds": sum(seconds) / len(seconds) if seconds else None,
        "records": [f"{request.attempt}/{r['launch']}" for r in records],
    }


@contextmanager
def _machine_to_itself(out: Out, stop: Stop) -> Iterator[None]:
    """Never two measurements at once on one machine, whatever runs started them."""
    path = Path(tempfile.gettempdir()) / f"rankbench-{os.getuid()}.lock"
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        told = False
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    out.say("  waiting: another measurement runs on this machine")
                    told = True
                if stop.reason():
                    raise Interrupted(stop.reason()) from None
                time.sleep(0.5)
        yield
    finally:
        os.close(handle)


def terminal_and(log: TextIO) -> Out:
    return Out(sys.stderr, log)
