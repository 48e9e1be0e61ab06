"""The state of each cell: measured or not, queued, running, and where."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rankbench.failures import explain_failures, find_needs
from rankbench.launch.hosts.base import CellJob, hosts_of
from rankbench.launch.job.claim import Owner, open_claims, read_owner, read_request
from rankbench.matrix.selection import find_cell
from rankbench.plan import Plan, PlannedCell
from rankbench.record import (
    FAILURES,
    GATE,
    PROFILE,
    Layout,
    Record,
    Verdict,
    explain_damage,
    judge_attempt,
    read_attempt,
    read_json,
    still_wanted,
    why_stale,
)

# Words for sets of cells in `rerun=`. No cell id equals one, since ids have dots.
RERUN_WORDS: Mapping[str, Sequence[str]] = {"failed": FAILURES, "stale": ("stale",)}


@dataclass(frozen=True, slots=True)
class State:
    """The state of a cell.

    Attributes:
        status: a status of the table, or ``queued`` or ``running``.
        launches: k/n of the requested attempt; empty without a request.
        reason: why the cell is not ok; empty if it is ok or running.
        where: host and job of its current or last launch; empty without launches.
    """

    status: str
    launches: str
    reason: str
    where: str

    @property
    def has_failed(self) -> bool:
        return self.status in FAILURES


def read_summary(layout: Layout, cell_id: str, attempt: int) -> Record | None:
    """What a job has found of an attempt; None if it is not complete.

    Raises:
        ValueError: the file is damaged.
    """
    path = layout.summary(cell_id, attempt)
    if not path.exists():
        return None
    found: Record = read_json(path)
    enough = found.get("enough")
    if not isinstance(enough, int | None):
        raise ValueError(f"{path} is damaged: enough: {enough!r:.60}, not a number")
    return {"image": None, "cell_hash": None, **found}


def _judge(
    plan: Plan, layout: Layout, cell: PlannedCell
) -> tuple[Verdict, Path, Sequence[Record]] | None:
    """The verdict on a cell's requested attempt, with its folder and its records.

    Those of the gate, if there are no others; None without a request. A file that is
    damaged makes the cell stale.
    """
    attempt, wanted = layout.attempt(cell.id, 0), 0
    try:
        request = read_request(layout, cell.id)
        if request is None:
            return None
        attempt, wanted = layout.attempt(cell.id, request.attempt), request.launches
        # The number of launches that suffice, if the budget ended them.
        summary = read_summary(layout, cell.id, request.attempt) or {}
        gate, records = read_attempt(attempt / GATE), read_attempt(attempt)
        planned = int(plan.experiment["launches"])
        wanted = summary.get("enough") or still_wanted(wanted, planned, records)
        stale = why_stale(
            records,
            cell_hash=cell.hash,
            image=plan.image_of(cell),
            asked_hash=request.cell_hash,
        )
        verdict = judge_attempt(gate, records, wanted, stale)
        return verdict, attempt, records or gate
    except ValueError as error:
        reason = explain_damage(error, layout.root)
        return Verdict("stale", reason, 0, wanted, complete=True), attempt, []


def find_verdict(plan: Plan, layout: Layout, cell: PlannedCell) -> Verdict | None:
    """Return the verdict on a cell's requested attempt; None without a request."""
    judged = _judge(plan, layout, cell)
    return None if judged is None else judged[0]


def find_state(
    plan: Plan,
    layout: Layout,
    cell: PlannedCell,
    job: CellJob | None = None,
    turn: str | None = None,
) -> State:
    """Return the state of a cell.

    Args:
        plan, layout, cell: the cell, and where its launches are.
        job: its job in Slurm's queue, if any.
        turn: from `find_turns`, if it is there.
    """
    if cell.infeasible:
        return State("unsupported", "", cell.infeasible, "")
    judged = _judge(plan, layout, cell)
    if judged is None:
        return State("not-run", "", why_not_run(layout, cell) or "", "")
    verdict, attempt, records = judged
    launches = f"{verdict.ok}/{verdict.wanted}"
    if job is not None:
        status = "running" if job.hosts else "queued"
        return State(status, launches, "", job.describe())
    for folder in (attempt, attempt / GATE, attempt / PROFILE):
        for _, launch in open_claims(folder):
            owner = read_owner(launch)
            if owner.is_alive(launch):
                return State("running", launches, "", f"on {owner.host}")
    reason = verdict.reason
    if turn and not verdict.complete:
        return State("queued", launches, "", turn)
    if verdict.status == "not-run":
        reason = why_not_run(layout, cell) or reason
    where = ""
    if records:
        # Those in the reports of the ranks, or else those given to the launcher.
        hosts = [host["host"] for host in records[-1].get("hosts") or ()]
        given = (records[-1].get("launcher") or {}).get("hosts", ["an unknown host"])
        where = f"on {','.join(hosts or given)}"
        if (number := records[-1].get("job_id")) is not None:
            where = f"job {number} {where}"
    return State(verdict.status, launches, reason or "", where)


def why_not_run(layout: Layout, cell: PlannedCell) -> str | None:
    """Return which data or image could not be made, or why the job was refused."""
    return explain_failures(layout, find_needs([(cell.image, cell.cell.data, cell.id)]))


def find_jobs(plan: Plan, layout: Layout, folder: Path) -> dict[str, CellJob]:
    """Return the jobs in the queue by their cells; {} without a queue.

    Raises:
        ValueError: the scheduler does not answer.
    """
    agenda = read_json(layout.agenda) if layout.agenda.exists() else {}
    cells = {name: job["cells"] for name, job in agenda.get("jobs", {}).items()}
    return {
        job.cell: job
        for job in hosts_of(plan.site).read_queue(plan.name, folder, cells)
    }


def describe_queue(jobs: Iterable[CellJob]) -> str:
    """Return how many jobs wait, and why, and how many run, in words."""
    states = {job.id: "run" if job.hosts else f"wait ({job.why})" for job in jobs}
    counts = sorted(Counter(states.values()).items())
    return ", ".join(f"jobs that {state}: {count}" for state, count in counts)


def find_turns(layout: Layout) -> dict[str, str]:
    """Return the cells whose launches take turns in a run on this machine now.

    Returns:
        Id of a cell -> the process of the run, in words.
    """
    with suppress(OSError, ValueError, LookupError, TypeError):
        agenda = read_json(layout.agenda)
        owner = Owner(**agenda["owner"])
        if owner.host == socket.gethostname() and owner.is_alive(layout.work):
            where = f"waits for its turn in process {owner.pid} on {owner.host}"
            cells = (cell for job in agenda["jobs"].values() for cell in job["cells"])
            return dict.fromkeys(cells, where)
    return {}


def find_rerun(plan: Plan, layout: Layout, wanted: Iterable[str]) -> list[PlannedCell]:
    """Return the cells that ids, and words of `RERUN_WORDS`, stand for, each once.

    Raises:
        ValueError: there is no such cell, or it cannot run here.
    """
    found: dict[str, PlannedCell] = {}
    for word in wanted:
        if word in RERUN_WORDS:
            for cell in plan.feasible:
                verdict = find_verdict(plan, layout, cell)
                if verdict is not None and verdict.status in RERUN_WORDS[word]:
                    found[cell.id] = cell
            continue
        cell = find_cell(plan, word)
        if cell.infeasible:
            raise ValueError(f"{word} cannot run here: {cell.infeasible}")
        found[cell.id] = cell
    return list(found.values())
