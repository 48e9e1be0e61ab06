"""The launches that an attempt of a cell still lacks, one after the other.

Or by turns with those of the run's other cells: what the machine does meanwhile it then
does to all of them alike.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rankbench.cell import Cell, Shape
from rankbench.environ import job_id
from rankbench.launch.claim import claim_next, open_claims, read_owner
from rankbench.launch.closing import close_dead_claim
from rankbench.launch.code import describe_code
from rankbench.launch.gate import has_gate
from rankbench.launch.images.checks import check_runs
from rankbench.launch.images.verify import check_file, read_image
from rankbench.launch.job import array_request
from rankbench.launch.launchers import find_launcher, is_array
from rankbench.launch.machine import machine_to_itself
from rankbench.launch.pace import Out, Pace
from rankbench.launch.queue import comment_of
from rankbench.launch.requests import Request, read_request
from rankbench.launch.scratch import scratch_of
from rankbench.launch.signs import Stop
from rankbench.launch.slurm import read_allocation
from rankbench.launch.supervise import run_launch
from rankbench.launch.task import Task
from rankbench.record import (
    CURED_BY_NEXT_RUN,
    GATE,
    PROFILE,
    Layout,
    Record,
    Verdict,
    judge,
    judge_attempt,
    read_attempt,
    read_json,
    why_stale,
    write_json,
)

Entry = dict[str, Any]

MEASURE = "measure"


class Interrupted(Exception):
    """This process was told to end; what is missing is left to the next run."""


def run_cell(layout: Layout, cell_id: str, *, project: Path, out: Out) -> Verdict:
    """Launch what is missing of the wanted attempt, then write the summary.

    First the gate, then the launches that are measured, then the profile if one is
    wanted. It can be called again at any time: with nothing missing it only writes the
    summary.

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
    if reason := _why_stale(attempt, entry):
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


class _Attempt:
    """The wanted attempt of a cell: what its launches have in common."""

    def __init__(
        self, layout: Layout, plan: Entry, entry: Entry, request: Request, project: Path
    ) -> None:
        self.directory = layout.attempt(entry["id"], request.attempt)
        self.request = request
        name = entry["image"]
        self.image = None if name is None else read_image(plan["images"][name])
        self._image_is_good = self.image is None
        cell = Cell.from_dict(entry["cell"])
        self.has_gate = plan["experiment"]["gate"] and has_gate(cell)
        self._plan, self._entry, self._project = plan, entry, project
        shape = Shape(**entry["shape"])
        slurm = plan["site"]["scheduler"] == "slurm"
        self.time_limit: float = plan["experiment"]["time_limit"]
        self._array = self._allocation = None
        if is_array(find_launcher(cell.launcher)):
            self._array = array_request(
                cell,
                shape,
                plan["site"],
                time_limit=self.time_limit,
                start_within=plan["experiment"]["start_within"],
                comment=comment_of(plan["experiment"]["name"], entry["id"]),
            )
            # Time in the queue counts.
            self.time_limit += self._array.start_within
        elif slurm:
            self._allocation = read_allocation(shape)
        self._code = describe_code()

    def check_image(self) -> None:
        """Once, before the first launch: it is the one that was built, and starts here.

        Raises:
            ValueError: it is not, or does not.
        """
        if self._image_is_good or self.image is None:
            return
        check_file(self.image)
        check_runs(Path(self.image["file"]))
        self._image_is_good = True

    def verdict(self) -> Verdict:
        return judge_attempt(self.directory, self.request.launches)

    def series(self, purpose: str) -> _Series:
        if purpose == MEASURE:
            return _Series(self, purpose, self.directory, self.request.launches)
        return _Series(self, purpose, self.directory / purpose, 1)

    def gate(self) -> dict[str, Any] | None:
        """What the gate found; None if there was none or it came to no end."""
        found: dict[str, Any] | None = None
        for record in read_attempt(self.directory / GATE):
            found = record.get("gate") or found
        return found

    def task(self, series: _Series, number: int, directory: Path) -> Task:
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
            wanted=series.wanted,
            directory=directory.resolve(),
            data_dir=(self._project / site["data_dir"]).resolve(),
            time_limit=self.time_limit,
            threads=_threads(shape, site),
            backend_logs=self._plan["experiment"]["backend_logs"],
            save_model=self._plan["experiment"]["save_model"],
            collectives=self._plan["experiment"]["collectives"],
            code=self._code,
            purpose=series.purpose,
            gate=self.gate(),
            image=self.image,
            allocation=self._allocation,
            interface=site["interface"],
            array=self._array,
            scratch=self._scratch_of(directory),
        )

    def _scratch_of(self, directory: Path) -> Path | None:
        """The folder of a launch; hosts of a job array are not known beforehand."""
        if self._array is not None:
            return None
        return scratch_of(self._plan["site"]["scratch"], job_id(), directory)


@dataclass(frozen=True, slots=True)
class _Series:
    """The launches of an attempt that serve one purpose."""

    attempt: _Attempt
    purpose: str
    directory: Path
    wanted: int

    def verdict(self) -> Verdict:
        return judge(read_attempt(self.directory), self.wanted)

    def task(self, number: int, directory: Path) -> Task:
        return self.attempt.task(self, number, directory)


def _launch_all(attempt: _Attempt, stop: Stop, pace: Pace, out: Out) -> Verdict:
    """All that is missing of the attempt, in its order."""
    if attempt.has_gate:
        _launch_missing(attempt.series(GATE), stop, pace, out)
    if attempt.verdict().status == "mismatch":
        # What trains something else gets no speed: there is nothing to measure.
        return attempt.verdict()
    _launch_missing(attempt.series(MEASURE), stop, pace, out)
    verdict = attempt.verdict()
    if attempt.request.profile and verdict.ok:
        _launch_missing(attempt.series(PROFILE), stop, pace, out)
    return verdict


def _find_others(
    layout: Layout, plan: Entry, cell_id: str, project: Path, out: Out
) -> Iterator[_Attempt]:
    """Attempts of this run's other cells that can be measured here and now.

    The job of each still comes, finds nothing missing and writes its summary, or says
    what is wrong with it.
    """
    for other in read_json(layout.agenda)["launches"]:
        request = read_request(layout, other)
        if other == cell_id or request is None:
            continue
        entry = _find(plan, other, layout)
        try:
            attempt = _Attempt(layout, plan, entry, request, project)
            if _why_stale(attempt, entry) is None and not attempt.verdict().complete:
                attempt.check_image()
                yield attempt
        except (ValueError, OSError) as error:
            out.say(f"  {other} is left out here: {error}")


def _take_turns(attempts: Sequence[_Attempt], stop: Stop, pace: Pace, out: Out) -> None:
    """One launch of each cell, in an order by chance, then the next of each."""
    for attempt in attempts:
        if attempt.has_gate:
            _launch_missing(attempt.series(GATE), stop, pace, out)
    while waiting := [one for one in attempts if not one.verdict().complete]:
        for attempt in random.sample(waiting, len(waiting)):
            left = sum(
                one.request.launches - one.verdict().ok
                for one in waiting
                if one is not attempt
            )
            _launch_next(attempt.series(MEASURE), stop, pace, out, elsewhere=left)


def _launch_missing(series: _Series, stop: Stop, pace: Pace, out: Out) -> None:
    """Launch until the series is complete."""
    while _launch_next(series, stop, pace, out):
        pass


def _launch_next(
    series: _Series, stop: Stop, pace: Pace, out: Out, *, elsewhere: int | None = None
) -> bool:
    """The next launch of a series; False if it is complete."""
    _settle_claims(series, stop, out)
    if series.verdict().complete:
        return False
    _heed(stop)
    series.attempt.check_image()
    number, directory = claim_next(series.directory)
    begun = time.monotonic()
    record = run_launch(series.task(number, directory), stop)
    seconds = time.monotonic() - begun
    out.say(pace.line(record, series.verdict(), seconds, elsewhere=elsewhere))
    if record["cause"] in CURED_BY_NEXT_RUN:
        raise Interrupted(record["reason"])
    return True


def _settle_claims(series: _Series, stop: Stop, out: Out) -> None:
    """Wait for launches that others are measuring; close those whose owner is dead."""
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


def _why_stale(attempt: _Attempt, entry: Entry) -> str | None:
    """Why launches of today would not belong to the attempt; None if they would."""
    return why_stale(
        read_attempt(attempt.directory),
        cell_hash=entry["hash"],
        image=attempt.image,
        asked_hash=attempt.request.cell_hash,
    )


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
