"""Plan and records as typed values: one row for every planned cell."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rankbench.cell import REFERENCE, Cell
from rankbench.disturbance import (
    DISTURBED,
    OVERSUBSCRIBED,
    disturbances,
    lacks_cores,
)
from rankbench.failures import explain_failures, find_needs
from rankbench.plan import (
    PLAN_VERSION,
    Plan,
    PlannedCell,
    PredictedCell,
    parse_plan,
)
from rankbench.record import (
    GATE,
    NOT_MEASURED,
    Layout,
    Record,
    counting,
    judge_gated,
    repeated,
    why_stale,
)
from rankbench.results.read.launches import Launch, read_launches
from rankbench.results.read.schema import read_checked
from rankbench.stopping import BUDGET, LaunchHistory, Rule, StopReason, find_enough


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
        wanted: launches that were asked for, or that sufficed; 0 if the cell cannot run
            here.
        attempt: None if there is no record.
        launches: the launches that succeeded, if the row is ok; else none. Those that
            another one replaces are left out.
        repeated: number of launches that another one replaces, as they were disturbed.
        stopped: why the launches ended, if a rule or the budget ended them.
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
    stopped: str | None = None
    repeated: int = 0

    @property
    def devices(self) -> int:
        return self.cell.size.devices


@dataclass(frozen=True, slots=True)
class Results:
    """The rows of an experiment in the order of the plan.

    Attributes:
        study: published numbers, if the experiment repeats a study.
        peaks: precision -> 10^12 operations per second of a device, where the site
            file says so.
        price: of a device-hour, and its currency, where the site file says so.
        targets: what the experiment wants to be predicted.
    """

    experiment: str
    rows: tuple[Row, ...]
    study: Study | None = None
    peaks: Mapping[str, float] = field(default_factory=dict)
    price: tuple[float, str] | None = None
    targets: tuple[PredictedCell, ...] = ()


# GPUs reach their power cap at full load, as their makers intend.
AT_FULL_LOAD = {"power cap"}


def load(layout: Layout) -> Results:
    """Read the plan and the latest attempt of each of its cells.

    Raises:
        ValueError: there is no plan, or a file is damaged; the message names it.
    """
    if not layout.plan.exists():
        raise ValueError(f"{layout.plan} does not exist: rankbench run makes the plan")
    value = read_checked(layout.plan, "plan", version=PLAN_VERSION)
    plan = parse_plan(value, layout.plan)
    try:
        study = read_study(plan.experiment, plan.cells)
        given = plan.site.get("peak_tflops") or {}
        peaks = {str(name): float(value) for name, value in given.items()}
        price = _read_price(plan.site)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{layout.plan} is damaged: {error!r}") from error
    attempts = [_read_attempt(layout, plan, cell) for cell in plan.cells.values()]
    enough = find_enough(
        {one.planned.id: one.launched() for one in attempts if one.counts},
        budget=plan.experiment.get("budget"),
    )
    rows = tuple(_make_row(layout, one, enough.get(one.planned.id)) for one in attempts)
    return Results(plan.name, rows, study, peaks, price, tuple(plan.predicted))


def _read_price(site: Record) -> tuple[float, str] | None:
    """The price of a device-hour: ``2.50 EUR``."""
    given = site.get("device_hour_price")
    if given is None:
        return None
    amount, currency = given.split()
    return float(amount), currency


@dataclass(frozen=True, slots=True)
class _Attempt:
    """The latest attempt of a cell.

    Attributes:
        number: None if there is none.
        stale: why its launches do not belong to the plan; None if they do.
    """

    plan: Plan
    planned: PlannedCell
    number: int | None
    gate: list[Launch]
    launches: list[Launch]
    stale: str | None

    @property
    def records(self) -> list[Record]:
        return [launch.record for launch in self.launches]

    @property
    def rule(self) -> Rule:
        """The rule by which it was measured."""
        if not self.launches:
            return self.plan.rule
        last = self.launches[-1].record
        return Rule.read(last.get("rule") or last["wanted"])

    @property
    def counts(self) -> bool:
        """Whether its launches are those of a cell of the plan."""
        is_feasible = self.planned.infeasible is None
        return is_feasible and self.number is not None and self.stale is None

    def launched(self) -> LaunchHistory:
        cell = self.planned.cell
        return LaunchHistory(
            rule=self.rule,
            workload=cell.workload(),
            devices=cell.size.devices,
            is_base=cell.is_base,
            records=self.records,
            beside=[launch.record for launch in self.gate],
        )


def _read_attempt(layout: Layout, plan: Plan, planned: PlannedCell) -> _Attempt:
    number, gate, launches = _latest(layout, planned.id)
    records = [launch.record for launch in launches]
    image = plan.image_of(planned)
    stale = why_stale(records, cell_hash=planned.hash, image=image)
    return _Attempt(plan, planned, number, gate, launches, stale)


def _make_row(layout: Layout, attempt: _Attempt, enough: StopReason | None) -> Row:
    planned, rule = attempt.planned, attempt.rule
    status, ok, number = "not-run", 0, attempt.number
    reason: str | None = NOT_MEASURED
    wanted, marks = rule.at_most, set(planned.marks)
    published: list[Launch] = []
    if planned.infeasible is not None:
        status, reason, wanted, number = "unsupported", planned.infeasible, 0, None
    elif number is not None:
        suffices = wanted if enough is None else enough.after
        gate = [launch.record for launch in attempt.gate]
        verdict = judge_gated(gate, attempt.records, suffices)
        status, reason, ok = verdict.status, verdict.reason, verdict.ok
        if enough is not None and not enough.why.startswith(BUDGET):
            wanted = suffices
        if attempt.stale:
            status, reason = "stale", attempt.stale
        else:
            counted = counting(attempt.records)
            marks |= _marks(counted, attempt)
            if status == "ok":
                kept = set(map(id, counted))
                published = [one for one in attempt.launches if id(one.record) in kept]
    if status == "not-run":
        needs = find_needs([(planned.image, planned.cell.data, planned.id)])
        reason = explain_failures(layout, needs) or reason
    return Row(
        id=planned.id,
        cell=planned.cell,
        status=status,
        reason=reason,
        marks=tuple(sorted(marks)),
        ok=ok,
        wanted=wanted,
        attempt=number,
        launches=tuple(published),
        stopped=None if enough is None else enough.why,
        repeated=len(repeated(attempt.records)),
    )


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


def _marks(records: Sequence[Record], attempt: _Attempt) -> set[str]:
    """Marks that follow from the records of an attempt."""
    planned, code = attempt.planned, attempt.plan.code["rank"]
    ok = [record for record in records if record["status"] == "ok"]
    found = {mark for record in records for mark in record.get("marks") or ()}
    if any(_code(record) not in (None, code) for record in records):
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


def _code(record: Record) -> str | None:
    """Hash of the rank-side code; a launch that failed early may not know it."""
    return (record.get("code") or {}).get("rank")


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """One row of the source, and the cell that repeats it.

    Attributes:
        label: the row's name in the source.
        cell: id of a cell of the plan.
        numbers: quantity -> values, several where there is one for each device.
        note: a remark on the row, such as a contradiction in the source.
    """

    label: str
    cell: str
    numbers: Mapping[str, tuple[float, ...]]
    note: str


@dataclass(frozen=True, slots=True)
class Study:
    """The source of published numbers, and its rows in order.

    Attributes:
        source: title, url, hardware, software, settings, base, note, if given.
        rows: none if the source has no numbers.
        override: name of the override that scaled the cells down, or None.
    """

    source: Mapping[str, str]
    rows: tuple[PublishedRow, ...]
    override: str | None = None

    @property
    def base(self) -> PublishedRow | None:
        """The row that the others are compared with."""
        label = self.source.get("base")
        return next((row for row in self.rows if row.label == label), None)


def read_study(experiment: Mapping[str, Any], cells: Collection[str]) -> Study | None:
    """The study of a plan with these cells; None if it repeats no published table.

    Raises:
        LookupError, TypeError, AttributeError: the plan is damaged.
    """
    value = experiment.get("study")
    if value is None:
        return None
    rows = tuple(_read_row(row) for row in value["rows"])
    unknown = [row.cell for row in rows if row.cell not in cells]
    if unknown:
        raise LookupError(f"published rows of unknown cells: {', '.join(unknown)}")
    return Study(value["source"], rows, experiment.get("override"))


def _read_row(row: Mapping[str, Any]) -> PublishedRow:
    words = {"label", "cell", "note"}
    numbers = {
        key: tuple(found) if isinstance(found, list) else (found,)
        for key, found in row.items()
        if key not in words
    }
    return PublishedRow(row["label"], row["cell"], numbers, row.get("note", ""))
