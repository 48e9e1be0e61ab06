"""Plan and records as typed values: one row for every planned cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rankbench.cell import REFERENCE, Cell, Shape, Topology
from rankbench.failures import Wanted, explain_failures, find_wanted
from rankbench.record import (
    GATE,
    NOT_MEASURED,
    Layout,
    Record,
    counting,
    judge_gated,
    why_stale,
)
from rankbench.results.read.launches import Launch, read_launches
from rankbench.results.read.schema import read_checked
from rankbench.results.read.study import Study, read_study
from rankbench.schedulers import scheduler_of
from rankbench.stopping import BUDGET, Enough, Launched, Rule, find_enough

READABLE_PLANS = (2,)


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
        launches: the launches that succeeded, if the row is ok; else none.
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

    @property
    def devices(self) -> int:
        return Topology.parse(self.cell.topology).devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A cell that is not measured but predicted.

    Attributes:
        obstacle: the reason why its strategy cannot have this topology, or None.
    """

    id: str
    cell: Cell
    shape: Shape
    obstacle: str | None

    @property
    def topology(self) -> Topology:
        return Topology.parse(self.cell.topology)


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
    targets: tuple[Target, ...] = ()


# GPUs reach their power cap at full load, as their makers intend.
AT_FULL_LOAD = {"power cap"}


@dataclass(frozen=True, slots=True)
class _Planned:
    """The entry of one cell in the plan.

    Attributes:
        image: recipe and sha256 of its image; None if it runs natively.
        rule: how many launches the experiment asks for.
        code: hash of the rank-side code at the time of the plan.
        wanted: image and data that it needs before it can be measured.
    """

    id: str
    hash: str
    cell: Cell
    infeasible: str | None
    marks: Sequence[str]
    image: Record | None
    rule: Rule
    code: str
    wanted: Sequence[Wanted]


def load(layout: Layout) -> Results:
    """Read the plan and the latest attempt of each of its cells.

    Raises:
        ValueError: there is no plan, or a file is damaged; the message names it.
    """
    plan = _read_plan(layout.plan)
    attempts = [_read_attempt(layout, planned) for planned in plan.cells]
    enough = find_enough(
        {one.planned.id: one.launched() for one in attempts if one.counts},
        budget=plan.budget,
    )
    rows = tuple(_make_row(layout, one, enough.get(one.planned.id)) for one in attempts)
    return Results(plan.name, rows, plan.study, plan.peaks, plan.price, plan.targets)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """The parts of a plan that rows are made of."""

    name: str
    cells: list[_Planned]
    study: Study | None
    peaks: dict[str, float]
    price: tuple[float, str] | None
    budget: float | None
    targets: tuple[Target, ...]


def _read_plan(path: Path) -> _Plan:
    if not path.exists():
        raise ValueError(f"{path} does not exist: rankbench run makes the plan")
    plan = read_checked(path, "plan", versions=READABLE_PLANS)
    try:
        experiment = plan["experiment"]
        feasible = [one for one in plan["cells"] if one["infeasible"] is None]
        cells = [
            _Planned(
                id=entry["id"],
                hash=entry["hash"],
                cell=Cell.from_dict(entry["cell"]),
                infeasible=entry["infeasible"],
                marks=entry["marks"],
                image=plan["images"].get(entry["image"]),
                rule=Rule.read(experiment["launches"]),
                code=plan["code"]["rank"],
                wanted=find_wanted(_needs_of_job(plan, entry, feasible)),
            )
            for entry in plan["cells"]
        ]
        ids = {cell.id for cell in cells}
        if len(ids) < len(cells):
            raise ValueError("a cell stands in it twice")
        study = read_study(plan["experiment"], ids)
        given = plan["site"].get("peak_tflops") or {}
        peaks = {str(name): float(value) for name, value in given.items()}
        return _Plan(
            name=experiment["name"],
            cells=cells,
            study=study,
            peaks=peaks,
            price=_read_price(plan["site"]),
            budget=experiment.get("budget"),
            targets=tuple(read_target(one) for one in plan.get("beyond") or ()),
        )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path} is damaged: {error!r}") from error


def read_target(entry: Record) -> Target:
    """Read an entry of `beyond` in a plan."""
    return Target(
        id=entry["id"],
        cell=Cell.from_dict(entry["cell"]),
        shape=Shape(**entry["shape"]),
        obstacle=entry["infeasible"],
    )


def _read_price(site: Record) -> tuple[float, str] | None:
    """The price of a device-hour: ``2.50 EUR``."""
    given = site.get("device_hour_price")
    if given is None:
        return None
    amount, currency = given.split()
    return float(amount), currency


def _needs_of_job(
    plan: Record, entry: Record, feasible: Sequence[Record]
) -> list[tuple[str | None, str]]:
    """Images and data of the cells that share a job with this one."""
    experiment = plan["experiment"]
    allocation = experiment.get("allocation")
    if not scheduler_of(plan.get("site", {})).has_queue:
        # Older plans have another key.
        turns = experiment.get("order") == "rounds" or experiment.get("interleave")
        return list(map(_needs, feasible)) if turns else [_needs(entry)]
    if allocation == "experiment":
        return list(map(_needs, feasible))
    if allocation == "topology":
        topology = entry["cell"]["topology"]
        alike = [one for one in feasible if one["cell"]["topology"] == topology]
        return list(map(_needs, alike)) or [_needs(entry)]
    return [_needs(entry)]


def _needs(entry: Record) -> tuple[str | None, str]:
    """Image and data of a cell of the plan."""
    return entry["image"], entry["cell"]["data"]


@dataclass(frozen=True, slots=True)
class _Attempt:
    """The latest attempt of a cell.

    Attributes:
        number: None if there is none.
        stale: why its launches do not belong to the plan; None if they do.
    """

    planned: _Planned
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
            return self.planned.rule
        last = self.launches[-1].record
        return Rule.read(last.get("rule") or last["wanted"])

    @property
    def counts(self) -> bool:
        """Whether its launches are those of a cell of the plan."""
        is_feasible = self.planned.infeasible is None
        return is_feasible and self.number is not None and self.stale is None

    def launched(self) -> Launched:
        cell = self.planned.cell
        return Launched(
            rule=self.rule,
            workload=cell.workload(),
            devices=Topology.parse(cell.topology).devices,
            is_base=cell.is_base,
            records=self.records,
            beside=[launch.record for launch in self.gate],
        )


def _read_attempt(layout: Layout, planned: _Planned) -> _Attempt:
    number, gate, launches = _latest(layout, planned.id)
    records = [launch.record for launch in launches]
    stale = why_stale(records, cell_hash=planned.hash, image=planned.image)
    return _Attempt(planned, number, gate, launches, stale)


def _make_row(layout: Layout, attempt: _Attempt, enough: Enough | None) -> Row:
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
            marks |= _marks(counting(attempt.records), planned)
            if status == "ok":
                published = [
                    one for one in attempt.launches if one.record["status"] == "ok"
                ]
    if status == "not-run":
        reason = explain_failures(layout, planned.wanted) or reason
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


def _marks(records: Sequence[Record], planned: _Planned) -> set[str]:
    """Marks that follow from the records of an attempt."""
    ok = [record for record in records if record["status"] == "ok"]
    found = {mark for record in records for mark in record.get("marks") or ()}
    if any(_code(record) not in (None, planned.code) for record in records):
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
    return found


def _code(record: Record) -> str | None:
    """Hash of the rank-side code; a launch that failed early may not know it."""
    return (record.get("code") or {}).get("rank")
