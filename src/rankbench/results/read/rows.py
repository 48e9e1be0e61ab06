"""Plan and records as typed values: one row for every planned cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rankbench.cell import Cell, Topology
from rankbench.failures import Wanted, explain_failures, find_wanted
from rankbench.record import (
    GATE,
    NOT_MEASURED,
    UNFINISHED,
    Layout,
    Record,
    counting,
    judge_gated,
    why_stale,
)
from rankbench.results.read.launches import Launch, read_launches
from rankbench.results.read.schema import read_checked
from rankbench.results.read.study import Study, read_study

READABLE_PLANS = (2,)

# Version of the wording of reasons, which is the version of the table's numbers, and
# the wording of version 1.
WORDS = 2
_BEFORE = {
    NOT_MEASURED: "not measured yet: run snakemake",
    UNFINISHED: "launches are done: run snakemake again to continue",
}

# The strategy that the gate compares others with.
REFERENCE = "single"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One planned cell and the result of its latest attempt.

    Attributes:
        id: the readable identity of the cell.
        cell: the cell as the plan has it.
        status: one of `rankbench.record.STATUSES`.
        reason: None exactly if the status is ``ok``.
        marks: sorted.
        ok: launches that succeeded.
        wanted: launches that were asked for; 0 if the cell cannot run here.
        attempt: None if there is no record.
        launches: the launches that succeeded, if the row is ok; else none.
    """

    id: str
    cell: Cell
    status: str
    reason: str | None
    marks: tuple[str, ...]
    ok: int
    wanted: int
    attempt: int | None
    launches: tuple[Launch, ...]

    @property
    def devices(self) -> int:
        return Topology.parse(self.cell.topology).devices


@dataclass(frozen=True, slots=True)
class Results:
    """The rows of an experiment in the order of the plan.

    Attributes:
        study: published numbers, if the experiment repeats a study.
        peaks: precision -> 10^12 operations per second of a device, where the site
            file says so.
    """

    experiment: str
    rows: tuple[Row, ...]
    study: Study | None = None
    peaks: Mapping[str, float] = field(default_factory=dict)


# GPUs reach their power cap at full load, as their makers intend.
AT_FULL_LOAD = {"power cap"}


@dataclass(frozen=True, slots=True)
class _Planned:
    """The entry of one cell in the plan.

    Attributes:
        image: recipe and sha256 of its image; None if it runs natively.
        launches: how many the experiment asks for.
        code: hash of the rank-side code at the time of the plan.
        wanted: image and data that it needs before it can be measured.
    """

    id: str
    hash: str
    cell: Cell
    infeasible: str | None
    marks: Sequence[str]
    image: Record | None
    launches: int
    code: str
    wanted: Sequence[Wanted]


def load(layout: Layout, *, words: int = WORDS) -> Results:
    """Read the plan and the latest attempt of each of its cells.

    Args:
        layout: the result directory.
        words: version of the words of reasons.

    Raises:
        ValueError: there is no plan, or a file is damaged; the message names it.
    """
    name, cells, study, peaks = _read_plan(layout.plan)
    rows = tuple(_load_row(layout, planned, words) for planned in cells)
    return Results(name, rows, study, peaks)


def _read_plan(
    path: Path,
) -> tuple[str, list[_Planned], Study | None, dict[str, float]]:
    if not path.exists():
        raise ValueError(f"{path} does not exist: rankbench run makes the plan")
    plan = read_checked(path, "plan", versions=READABLE_PLANS)
    try:
        # If launches take turns, the first job measures all cells and needs all images.
        turns = plan["experiment"].get("interleave")
        feasible = [one for one in plan["cells"] if one["infeasible"] is None]
        together = [_needs(one) for one in feasible] if turns else []
        cells = [
            _Planned(
                id=entry["id"],
                hash=entry["hash"],
                cell=Cell.from_dict(entry["cell"]),
                infeasible=entry["infeasible"],
                marks=entry["marks"],
                image=plan["images"].get(entry["image"]),
                launches=plan["experiment"]["launches"],
                code=plan["code"]["rank"],
                wanted=find_wanted(together or [_needs(entry)]),
            )
            for entry in plan["cells"]
        ]
        ids = {cell.id for cell in cells}
        if len(ids) < len(cells):
            raise ValueError("a cell stands in it twice")
        study = read_study(plan["experiment"], ids)
        given = plan["site"].get("peak_tflops") or {}
        peaks = {str(name): float(value) for name, value in given.items()}
        return plan["experiment"]["name"], cells, study, peaks
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path} is damaged: {error!r}") from error


def _needs(entry: Record) -> tuple[str | None, str]:
    """Image and data of a cell of the plan."""
    return entry["image"], entry["cell"]["data"]


def _load_row(layout: Layout, planned: _Planned, words: int) -> Row:
    status, ok = "not-run", 0
    reason: str | None = NOT_MEASURED
    wanted, marks = planned.launches, set(planned.marks)
    published: list[Launch] = []
    attempt, gate, launches = _latest(layout, planned.id)
    records = [launch.record for launch in launches]
    if planned.infeasible is not None:
        status, reason, wanted, attempt = "unsupported", planned.infeasible, 0, None
    elif attempt is not None:
        wanted = records[-1]["wanted"] if records else planned.launches
        verdict = judge_gated([one.record for one in gate], records, wanted)
        status, reason, ok = verdict.status, verdict.reason, verdict.ok
        stale = why_stale(records, cell_hash=planned.hash, image=planned.image)
        if stale:
            status, reason = "stale", stale
        else:
            marks |= _marks(counting(records), planned)
            if status == "ok":
                published = [one for one in launches if one.record["status"] == "ok"]
    if status == "not-run":
        reason = explain_failures(layout, planned.wanted) or reason
        if reason is not None and words == 1:
            reason = _say_as_before(reason)
    return Row(
        id=planned.id,
        cell=planned.cell,
        status=status,
        reason=reason,
        marks=tuple(sorted(marks)),
        ok=ok,
        wanted=wanted,
        attempt=attempt,
        launches=tuple(published),
    )


def _say_as_before(reason: str) -> str:
    """The reason in the words of version 1, for older bundles."""
    for today, before in _BEFORE.items():
        if reason.endswith(today):
            return reason.removesuffix(today) + before
    return reason


def _latest(
    layout: Layout, cell_id: str
) -> tuple[int | None, list[Launch], list[Launch]]:
    """The latest attempt with a record, the launches of its gate, and its own launches.

    There are no own launches if the gate refused the strategy.
    """
    for attempt in reversed(layout.attempts(cell_id)):
        place = layout.attempt(cell_id, attempt)
        gate, found = read_launches(place / GATE, measured=False), read_launches(place)
        if gate or found:
            return attempt, gate, found
    return None, [], []


def _marks(records: Sequence[Record], planned: _Planned) -> set[str]:
    """Marks that follow from the records of an attempt."""
    ok = [record for record in records if record["status"] == "ok"]
    found = {mark for record in records for mark in record.get("marks") or ()}
    if any(_code(record) not in (None, planned.code) for record in records):
        found.add("other-code")
    if ok and planned.cell.strategy != REFERENCE and not all(r.get("gate") for r in ok):
        found.add("unchecked")
    if len({frozenset(host["host"] for host in r["hosts"]) for r in ok}) > 1:
        found.add("mixed-hosts")
    if len({r["software"]["torch"] for r in ok}) > 1:
        found.add("mixed-torch")
    devices = [device for record in ok for device in record.get("devices") or ()]
    if any(set(device.get("throttled") or ()) - AT_FULL_LOAD for device in devices):
        found.add("throttled")
    return found


def _code(record: Record) -> str | None:
    """Hash of the rank-side code; a launch that failed early may not know it."""
    return (record.get("code") or {}).get("rank")
