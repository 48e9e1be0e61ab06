"""Plan and records as typed values: one row for every planned cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rankbench.cell import REFERENCE, Cell
from rankbench.failures import explain_failures, find_needs
from rankbench.invocation import named_in
from rankbench.plan import (
    PLAN_VERSION,
    Plan,
    PlannedCell,
    PredictedCell,
    parse_plan,
)
from rankbench.record import (
    BUDGET,
    DISTURBED,
    GATE,
    NOT_MEASURED,
    OVERSUBSCRIBED,
    Layout,
    Record,
    counting,
    disturbances,
    explain_damage,
    judge_attempt,
    lacks_cores,
    repeated,
    why_stale,
)
from rankbench.results.read.archive import refuse_links
from rankbench.results.read.launches import Launch, read_launches
from rankbench.results.read.schema import read_checked
from rankbench.stopping import LaunchHistory, find_ended


@dataclass(frozen=True, kw_only=True)
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
        launches: the launches that succeeded, if the row is ok; else none. Those that
            another one replaces are left out.
        partial: the launches that succeeded, if none failed and others are to come.
        repeated: number of launches that another one replaces, as they were disturbed.
        estimated_mib: as the plan has it.
        damage: what is wrong with one of its files; the row is ``stale`` then.
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
    partial: tuple[Launch, ...] = ()
    repeated: int = 0
    estimated_mib: float | None = None
    damage: ValueError | None = None

    @property
    def devices(self) -> int:
        return self.cell.size.devices

    def without_launches(self, damage: ValueError, root: Path) -> Row:
        """The row, if a file of its launches cannot be used.

        Args:
            damage: its message names the file.
            root: the result directory.
        """
        reason = explain_damage(damage, root)
        lost: dict[str, Any] = {"launches": (), "partial": (), "damage": damage}
        return replace(self, status="stale", reason=reason, **lost)


@dataclass(frozen=True)
class Results:
    """The rows of an experiment in the order of the plan.

    Attributes:
        study: the source of published numbers and its rows, if the experiment repeats a
            study, and the override that scaled its cells down, or None.
        peaks: precision -> 10^12 operations per second of a device, where the site
            file says so.
        price: of a device-hour, and its currency, where the site file says so.
        targets: what the experiment wants to be predicted.
        target: what time and samples are counted to: loss or accuracy, and its value.
        source: how commands name it: arguments for `rankbench_command`.
        has_blocks: whether the experiment file has several sweeps.
    """

    experiment: str
    rows: Sequence[Row]
    study: Mapping[str, Any] | None = None
    peaks: Mapping[str, float] = field(default_factory=dict)
    price: tuple[float, str] | None = None
    targets: tuple[PredictedCell, ...] = ()
    target: tuple[str, float] | None = None
    source: Mapping[str, Any] = field(default_factory=dict)
    has_blocks: bool = False


# GPUs reach their power cap at full load, as their makers intend.
AT_FULL_LOAD = {"power cap"}


def load(layout: Layout) -> Results:
    """Read the plan and the latest attempt of each of its cells.

    A damaged record makes the row of its cell ``stale``, and no other.

    Raises:
        ValueError: there is no plan, or it is damaged, or there is a link; the message
            names it.
    """
    if not layout.plan.exists():
        raise ValueError(f"{layout.plan} does not exist: no experiment was run here")
    refuse_links(layout.root)
    value = read_checked(layout.plan, "plan", version=PLAN_VERSION)
    plan = parse_plan(value, layout.plan)
    try:
        study = plan.experiment.get("study")
        if study:
            unknown = {row["cell"] for row in study["rows"]} - plan.cells.keys()
            if unknown:
                listed = ", ".join(sorted(unknown))
                raise LookupError(f"published rows of unknown cells: {listed}")
            study = study | {"override": plan.experiment.get("override")}
        rates = plan.site.get("peak_tflops") or {}
        peaks = {str(name): float(value) for name, value in rates.items()}
        price = None
        if given := plan.site.get("device_hour_price"):
            amount, currency = given.split()
            price = (float(amount), currency)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{layout.plan} is damaged: {error!r}") from error
    attempts = [_read_attempt(layout, plan, cell) for cell in plan.cells.values()]
    ended = find_ended(
        {
            own.planned.id: LaunchHistory(
                own.wanted,
                own.planned.cell.size.devices,
                own.records,
                [launch.record for launch in own.gate],
            )
            for own in attempts
            if own.planned.infeasible is None and own.number and own.stale is None
        },
        plan.experiment.get("budget"),
    )
    rows = tuple(_make_row(layout, own, ended.get(own.planned.id)) for own in attempts)
    target = next(iter((plan.experiment.get("target") or {}).items()), None)
    kept = layout.experiment
    return Results(
        plan.name,
        rows,
        study,
        peaks,
        price,
        tuple(plan.predicted),
        target,
        source=named_in(plan.experiment),
        has_blocks=kept.exists() and "\nblocks:" in kept.read_text(errors="replace"),
    )


@dataclass(frozen=True, slots=True)
class _Attempt:
    """The latest attempt of a cell.

    Attributes:
        number: None if there is none.
        gate, launches: those whose records are not damaged.
        stale: why its launches do not belong to the plan; None if they do.
        damage: what is wrong with the first damaged record; None if all are well.
    """

    plan: Plan
    planned: PlannedCell
    number: int | None
    gate: list[Launch]
    launches: list[Launch]
    stale: str | None
    damage: ValueError | None

    @property
    def records(self) -> list[Record]:
        return [launch.record for launch in self.launches]

    @property
    def wanted(self) -> int:
        """How many launches were asked for."""
        asked = self.launches[-1].record if self.launches else None
        return int(asked["wanted"] if asked else self.plan.experiment["launches"])


def _read_attempt(layout: Layout, plan: Plan, planned: PlannedCell) -> _Attempt:
    """Read the latest attempt with a record, of the cell or of its gate.

    There are no launches of its own if the gate refused the strategy.
    """
    number: int | None = None
    gate: list[Launch] = []
    launches: list[Launch] = []
    damaged: list[ValueError] = []
    for attempt in reversed(layout.attempts(planned.id)):
        place = layout.attempt(planned.id, attempt)
        gate = read_launches(place / GATE, measured=False, damaged=damaged)
        launches = read_launches(place, damaged=damaged)
        if gate or launches or damaged:
            number = attempt
            break
    records = [launch.record for launch in launches]
    image = plan.image_of(planned)
    stale = why_stale(records, cell_hash=planned.hash, image=image)
    damage = next(iter(damaged), None)
    return _Attempt(plan, planned, number, gate, launches, stale, damage)


def _make_row(layout: Layout, attempt: _Attempt, enough: int | None) -> Row:
    """The row of a cell.

    Args:
        enough: how many launches it got, if the budget ended them.
    """
    planned = attempt.planned
    status, ok, number = "not-run", 0, attempt.number
    reason: str | None = NOT_MEASURED
    wanted, marks = attempt.wanted, set(planned.marks)
    published: list[Launch] = []
    partial = False
    if planned.infeasible is not None:
        status, reason, wanted, number = "unsupported", planned.infeasible, 0, None
    elif number is not None:
        gate = [launch.record for launch in attempt.gate]
        suffices = wanted if enough is None else enough
        verdict = judge_attempt(gate, attempt.records, suffices, attempt.stale)
        status, reason, ok = verdict.status, verdict.reason, verdict.ok
        if status != "stale":
            counted = counting(attempt.records)
            marks |= _marks(counted, attempt)
            if enough is not None:
                marks.add(BUDGET)
            kept = set(map(id, counted))
            if all(record["status"] == "ok" for record in counted):
                published = [one for one in attempt.launches if id(one.record) in kept]
                partial = status != "ok" and not verdict.complete
    if status == "not-run":
        needs = find_needs([(planned.image, planned.cell.data, planned.id)])
        reason = explain_failures(layout, needs) or reason
    row = Row(
        id=planned.id,
        cell=planned.cell,
        status=status,
        reason=reason,
        marks=tuple(sorted(marks)),
        ok=ok,
        wanted=wanted,
        attempt=number,
        launches=tuple(published) if status == "ok" else (),
        partial=tuple(published) if partial else (),
        repeated=len(repeated(attempt.records)),
        estimated_mib=planned.estimated_mib,
        damage=attempt.damage,
    )
    if attempt.damage and planned.infeasible is None:
        return row.without_launches(attempt.damage, layout.root)
    return row


def _marks(records: Sequence[Record], attempt: _Attempt) -> set[str]:
    """Marks that follow from the records of an attempt."""
    planned, code = attempt.planned, attempt.plan.code["rank"]
    ok = [record for record in records if record["status"] == "ok"]
    found = {mark for record in records for mark in record.get("marks") or ()}
    # A launch that failed early may not know its code.
    known = [(record.get("code") or {}).get("rank") for record in records]
    if any(rank not in (None, code) for rank in known):
        found.add("other-code")
    if ok and planned.cell.strategy != REFERENCE and not all(r.get("gate") for r in ok):
        found.add("unchecked")
    # In a job that cells share, the hosts of a smaller cell change by turns.
    alone = [r for r in ok if not (r.get("round") or {}).get("devices")]
    if len({frozenset(host["host"] for host in r["hosts"]) for r in alone}) > 1:
        found.add("mixed-hosts")
    if len({r["software"]["torch"] for r in ok}) > 1:
        found.add("mixed-torch")
    devices = [device for record in ok for device in record.get("devices") or ()]
    if any(set(device.get("throttled") or ()) - AT_FULL_LOAD for device in devices):
        found.add("throttled")
    if any(map(disturbances, ok)):
        found.add(DISTURBED)
    if any(map(lacks_cores, ok)):
        found.add(OVERSUBSCRIBED)
    return found
