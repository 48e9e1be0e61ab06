"""Run the launches that an attempt of a cell still lacks.

They run one after the other, or in turns with launches of the other cells. Then changes
of the machine affect all cells alike.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rankbench.launch.cell.attempt import MEASURE, Attempt, Entry, Series
from rankbench.launch.cell.claim import claim_next, open_claims, read_owner
from rankbench.launch.cell.machine_lock import machine_to_itself
from rankbench.launch.cell.pace import Out, Pace
from rankbench.launch.cell.requests import Request, read_request
from rankbench.launch.outcome.closing import close_dead_claim
from rankbench.launch.process.signs import Stop
from rankbench.launch.process.supervise import refuse_launch, run_launch
from rankbench.launch.task import Task
from rankbench.record import (
    CURED_BY_NEXT_RUN,
    GATE,
    PROFILE,
    Layout,
    Record,
    Verdict,
    read_attempt,
    read_json,
    write_json,
)


class Interrupted(Exception):
    """This process was told to end. The next run measures missing launches."""


def run_cell(layout: Layout, cell_id: str, *, project: Path, out: Out) -> Verdict:
    """Run the missing launches of the wanted attempt, then write the summary.

    First the gate, then the measured launches, then the profile if one is wanted. It
    may be called again at any time. With nothing missing it only writes the summary.

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
        raise ValueError(
            f"{layout.request(cell_id)} is missing: `rankbench run` writes it"
        )
    attempt = Attempt(layout, plan, entry, request, project)
    if reason := attempt.why_stale():
        verdict = replace(
            attempt.verdict(), status="stale", reason=reason, complete=True
        )
    else:
        with Stop().listening() as stop:
            waiting = machine_to_itself(told_to_stop=lambda: _heed(stop), say=out.say)
            with waiting:
                pace = Pace(layout, cell_id)
                if plan["experiment"]["interleave"]:
                    others = _find_others(layout, plan, cell_id, project, out)
                    _take_turns([attempt, *others], stop, pace, out)
                verdict = _launch_all(attempt, stop, pace, out)
    records = read_attempt(attempt.directory)
    write_json(layout.summary(cell_id), _summarise(cell_id, request, verdict, records))
    return verdict


def _launch_all(attempt: Attempt, stop: Stop, pace: Pace, out: Out) -> Verdict:
    """Run the missing launches of one attempt in order."""
    if attempt.has_gate:
        _launch_missing(attempt.series(GATE), stop, pace, out)
    if attempt.verdict().status == "mismatch":
        # A strategy that trains something else is not measured.
        return attempt.verdict()
    _launch_missing(attempt.series(MEASURE), stop, pace, out)
    verdict = attempt.verdict()
    if attempt.request.profile and verdict.ok:
        _launch_missing(attempt.series(PROFILE), stop, pace, out)
    return verdict


def _find_others(
    layout: Layout, plan: Entry, cell_id: str, project: Path, out: Out
) -> Iterator[Attempt]:
    """Attempts of other cells of this run that can be measured here now.

    The job of each cell runs later. It finds nothing missing and writes the summary, or
    reports a fault of the cell.
    """
    for other in read_json(layout.agenda)["launches"]:
        request = read_request(layout, other)
        if other == cell_id or request is None:
            continue
        entry = _find(plan, other, layout)
        try:
            attempt = Attempt(layout, plan, entry, request, project)
            if attempt.why_stale() is None and not attempt.verdict().complete:
                attempt.check_image()
                yield attempt
        except (ValueError, OSError) as error:
            out.say(f"  {other} is left out here: {error}")


def _take_turns(attempts: Sequence[Attempt], stop: Stop, pace: Pace, out: Out) -> None:
    """One launch of each cell in random order, then the next launch of each.

    Records have the seed of the order.
    """
    seed = secrets.randbits(32)
    chance = random.Random(seed)
    for attempt in attempts:
        attempt.turns_seed = seed
    for attempt in attempts:
        if attempt.has_gate:
            _launch_missing(attempt.series(GATE), stop, pace, out)
    while waiting := [one for one in attempts if not one.verdict().complete]:
        for attempt in chance.sample(waiting, len(waiting)):
            left = sum(
                one.request.launches - one.verdict().ok
                for one in waiting
                if one is not attempt
            )
            _launch_next(attempt.series(MEASURE), stop, pace, out, elsewhere=left)


def _launch_missing(series: Series, stop: Stop, pace: Pace, out: Out) -> None:
    """Launch until the series is complete."""
    while _launch_next(series, stop, pace, out):
        pass


def _launch_next(
    series: Series, stop: Stop, pace: Pace, out: Out, *, elsewhere: int | None = None
) -> bool:
    """The next launch of a series; False if it is complete."""
    _settle_claims(series, stop, out)
    if series.verdict().complete:
        return False
    _heed(stop)
    number, directory = claim_next(series.directory)
    begun = time.monotonic()
    record = _launch(series.attempt, series.task(number, directory), stop)
    seconds = time.monotonic() - begun
    out.say(pace.line(record, series.verdict(), seconds, elsewhere=elsewhere))
    if record["cause"] in CURED_BY_NEXT_RUN:
        raise Interrupted(record["reason"])
    return True


def _launch(attempt: Attempt, task: Task, stop: Stop) -> Record:
    started = datetime.now(UTC)
    try:
        attempt.check_image()
    except (ValueError, OSError) as error:
        # Only this host may have the fault: other hosts of the site may have the image.
        return refuse_launch(task, str(error), started)
    return run_launch(task, stop)


def _settle_claims(series: Series, stop: Stop, out: Out) -> None:
    """Wait for launches of other processes, and close those whose owner is dead."""
    told = False
    while claims := open_claims(series.directory):
        for number, directory in claims:
            if read_owner(directory).is_alive(directory):
                continue
            claimed = (directory / "claim.json").stat().st_mtime
            started = datetime.fromtimestamp(claimed, UTC)
            close_dead_claim(series.task(number, directory), started=started)
            out.say(f"  launch {number} was left unfinished: it is measured anew")
        if open_claims(series.directory):
            if not told:
                out.say("  waiting for a launch that another process measures")
                told = True
            _heed(stop)
            time.sleep(1)


def _heed(stop: Stop) -> None:
    if reason := stop.reason():
        raise Interrupted(reason)


def _find(plan: Entry, cell_id: str, layout: Layout) -> Entry:
    for entry in plan["cells"]:
        if entry["id"] == cell_id:
            if entry["infeasible"]:
                raise ValueError(f"{cell_id} cannot run here: {entry['infeasible']}")
            return dict(entry)
    raise ValueError(f"{layout.plan} has no cell {cell_id}")


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
