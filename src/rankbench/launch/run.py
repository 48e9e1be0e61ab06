"""The launches that an attempt of a cell still lacks, one after the other."""

from __future__ import annotations

import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rankbench.cell import Cell, Shape
from rankbench.launch.claim import claim_next, open_claims, read_owner
from rankbench.launch.code import describe_code
from rankbench.launch.machine import machine_to_itself
from rankbench.launch.pace import Out, Pace
from rankbench.launch.requests import Request, read_request
from rankbench.launch.signs import Stop
from rankbench.launch.supervise import Task, close_dead_claim, run_launch
from rankbench.record import (
    CHANGED_CELL,
    CURED_BY_NEXT_RUN,
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
    attempt = _Attempt(layout, plan, entry, request, project)
    if request.cell_hash != entry["hash"]:
        verdict = _stale(attempt.verdict())
    else:
        with Stop().listening() as stop:
            waiting = machine_to_itself(told_to_stop=lambda: _heed(stop), say=out.say)
            with waiting:
                pace = Pace(layout, cell_id)
                verdict = _launch_missing(attempt, stop, pace, out)
    summary = _summarise(cell_id, request, verdict, attempt.records())
    write_json(layout.summary(cell_id), summary)
    return verdict


class _Attempt:
    """The wanted attempt of a cell: what its launches have in common."""

    def __init__(
        self, layout: Layout, plan: Entry, entry: Entry, request: Request, project: Path
    ) -> None:
        self.directory = layout.attempt(entry["id"], request.attempt)
        self.request = request
        self._plan, self._entry, self._project = plan, entry, project
        self._code = describe_code()

    def records(self) -> list[Record]:
        return read_attempt(self.directory)

    def verdict(self) -> Verdict:
        return judge(self.records(), self.request.launches)

    def task(self, number: int, directory: Path) -> Task:
        entry, site = self._entry, self._plan["site"]
        shape = Shape(**entry["shape"])
        return Task(
            experiment=self._plan["experiment"]["name"],
            cell_id=entry["id"],
            cell_hash=entry["hash"],
            cell=Cell.from_dict(entry["cell"]),
            shape=shape,
            phases=entry["phases"],
            marks=entry["marks"],
            attempt=self.request.attempt,
            number=number,
            wanted=self.request.launches,
            directory=directory.resolve(),
            data_dir=(self._project / site["data_dir"]).resolve(),
            time_limit=self._plan["experiment"]["time_limit"],
            threads=_threads(shape, site),
            code=self._code,
        )


def _launch_missing(attempt: _Attempt, stop: Stop, pace: Pace, out: Out) -> Verdict:
    """Launch until the attempt is complete."""
    while True:
        _settle_claims(attempt, stop, out)
        verdict = attempt.verdict()
        if verdict.complete:
            return verdict
        _heed(stop)
        number, directory = claim_next(attempt.directory)
        begun = time.monotonic()
        record = run_launch(attempt.task(number, directory), stop)
        out.say(pace.line(record, attempt.verdict(), time.monotonic() - begun))
        if record["cause"] in CURED_BY_NEXT_RUN:
            raise Interrupted(record["reason"])


def _settle_claims(attempt: _Attempt, stop: Stop, out: Out) -> None:
    """Wait for launches that others are measuring; close those whose owner is dead."""
    told = False
    while claims := open_claims(attempt.directory):
        for number, directory in claims:
            if read_owner(directory).is_alive(directory):
                continue
            claimed = (directory / "claim.json").stat().st_mtime
            started = datetime.fromtimestamp(claimed, UTC)
            close_dead_claim(attempt.task(number, directory), started=started)
            out.say(f"  launch {number} was left unfinished: it is measured anew")
        if open_claims(attempt.directory):
            if not told:
                out.say("  waiting for a launch that another process measures")
                told = True
            _heed(stop)
            time.sleep(1)


def _heed(stop: Stop) -> None:
    if reason := stop.reason():
        raise Interrupted(reason)


def _threads(shape: Shape, site: Entry) -> int:
    """CPU threads of a rank: one per core of its device, or its share of the host."""
    share = max(1, site["cores"] // shape.ranks_per_node)
    return int(shape.cores_per_rank or site["cpu_threads_per_gpu"] or share)


def _find(plan: Entry, cell_id: str, layout: Layout) -> Entry:
    for entry in plan["cells"]:
        if entry["id"] == cell_id:
            if entry["infeasible"]:
                raise ValueError(f"{cell_id} cannot run here: {entry['infeasible']}")
            return dict(entry)
    raise ValueError(f"{layout.plan} has no cell {cell_id}")


def _stale(done: Verdict) -> Verdict:
    return Verdict("stale", CHANGED_CELL, done.ok, done.wanted, complete=True)


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
