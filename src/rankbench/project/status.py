"""What state each cell is in: measured or not, queued, running, and where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rankbench.failures import explain_failures, find_wanted
from rankbench.launch.cell.claim import open_claims, read_owner
from rankbench.launch.cell.requests import Request, read_request
from rankbench.launch.hosts.slurm_queue import CellJob, read_queue
from rankbench.matrix.plan import Plan, PlannedCell
from rankbench.matrix.site import SLURM
from rankbench.record import (
    FAILURES,
    GATE,
    PROFILE,
    Layout,
    Record,
    Verdict,
    judge_attempt,
    read_attempt,
    why_stale,
)

# Words that stand for cells in `rerun=`: no id is one, since ids have dots.
RERUN_WORDS: Mapping[str, Sequence[str]] = {"failed": FAILURES, "stale": ("stale",)}


@dataclass(frozen=True, slots=True)
class State:
    """The state of a cell.

    Attributes:
        status: a status of the table, or ``queued`` or ``running``.
        launches: k/n of the wanted attempt; empty if nothing was asked for.
        reason: why it is not ok; empty if it is, or runs.
        where: host and job where it runs, or ran; empty if it never did.
    """

    status: str
    launches: str
    reason: str
    where: str

    @property
    def has_failed(self) -> bool:
        return self.status in FAILURES


def find_verdict(plan: Plan, layout: Layout, cell: PlannedCell) -> Verdict | None:
    """What the wanted attempt of a cell amounts to; None if nothing was asked for."""
    request = read_request(layout, cell.id)
    return None if request is None else _judge(plan, layout, cell, request)


def find_state(
    plan: Plan, layout: Layout, cell: PlannedCell, job: CellJob | None = None
) -> State:
    """The state of a cell, whose job is in Slurm's queue if one is given."""
    if cell.infeasible:
        return State("unsupported", "", cell.infeasible, "")
    request = read_request(layout, cell.id)
    if request is None:
        return State("not-run", "", _why_not_run(plan, layout, cell) or "", "")
    verdict = _judge(plan, layout, cell, request)
    if verdict.status == "not-run":
        reason = _why_not_run(plan, layout, cell) or verdict.reason
        verdict = replace(verdict, reason=reason)
    launches = f"{verdict.ok}/{verdict.wanted}"
    attempt = layout.attempt(cell.id, request.attempt)
    if job is not None:
        status = "running" if job.hosts else "queued"
        return State(status, launches, "", job.describe())
    if host := _measuring_host(attempt):
        return State("running", launches, "", host)
    return State(
        verdict.status, launches, verdict.reason or "", _last_place(attempt) or ""
    )


def _why_not_run(plan: Plan, layout: Layout, cell: PlannedCell) -> str | None:
    """What the cell waits for and could not be made, and why."""
    # Where launches take turns, the first job measures all cells.
    cells = plan.feasible if plan.experiment["interleave"] else [cell]
    needs = [(one.image, one.cell.data) for one in cells]
    return explain_failures(layout, find_wanted(needs))


def find_jobs(plan: Plan, folder: Path) -> dict[str, CellJob]:
    """Jobs in Slurm's queue by their cells; none where there is no Slurm.

    Raises:
        ValueError: Slurm does not answer.
    """
    if plan.site["scheduler"] != SLURM:
        return {}
    return {job.cell: job for job in read_queue(plan.name, folder, plan.cells)}


def cells_to_rerun(plan: Plan, layout: Layout, word: str) -> list[PlannedCell]:
    """The cells that one of `RERUN_WORDS` stands for."""
    found = []
    for cell in plan.feasible:
        verdict = find_verdict(plan, layout, cell)
        if verdict is not None and verdict.status in RERUN_WORDS[word]:
            found.append(cell)
    return found


def _judge(plan: Plan, layout: Layout, cell: PlannedCell, request: Request) -> Verdict:
    attempt = layout.attempt(cell.id, request.attempt)
    verdict = judge_attempt(attempt, request.launches)
    reason = why_stale(
        read_attempt(attempt),
        cell_hash=cell.hash,
        image=None if cell.image is None else plan.images[cell.image],
        asked_hash=request.cell_hash,
    )
    if reason is None:
        return verdict
    return replace(verdict, status="stale", reason=reason)


def _measuring_host(attempt: Path) -> str | None:
    """Where a launch of the attempt runs at the moment."""
    for folder in (attempt, attempt / GATE, attempt / PROFILE):
        for _, launch in open_claims(folder):
            owner = read_owner(launch)
            if owner.is_alive(launch):
                return f"on {owner.host}"
    return None


def _last_place(attempt: Path) -> str | None:
    """Where the last launch of the attempt ran."""
    records = read_attempt(attempt) or read_attempt(attempt / GATE)
    if not records:
        return None
    job = records[-1]["job_id"]
    where = f"on {','.join(_hosts_of(records[-1]))}"
    return where if job is None else f"job {job} {where}"


def _hosts_of(record: Record) -> list[str]:
    """Hosts as the ranks found them; of a launch that failed, as it was started."""
    if "hosts" in record:
        return [host["host"] for host in record["hosts"]]
    started: list[str] = record.get("launcher", {}).get("hosts", ["an unknown host"])
    return started
