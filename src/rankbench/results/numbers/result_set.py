"""Plan and records of a result directory: one row for every planned cell.

A row has its launches, the estimates over them, and its ratios to a named base. All
that people read, and `rankbench.load`, is made of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from rankbench.cell import REFERENCE, Cell, find_bases
from rankbench.failures import explain_failures, find_needs
from rankbench.invocation import named_in
from rankbench.plan import PLAN_VERSION, Plan, PlannedCell, PredictedCell, parse_plan
from rankbench.record import (
    BUDGET,
    DISTURBED,
    GATE,
    NO_EXCHANGE,
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
    still_wanted,
    why_stale,
)
from rankbench.results.numbers import statistics
from rankbench.results.numbers.hosts import find_slow_hosts
from rankbench.results.numbers.launches import Values, make_frame, measure
from rankbench.results.numbers.series import Panel, make_panels
from rankbench.results.numbers.statistics import Estimate, Fit
from rankbench.results.read.archive import refuse_links
from rankbench.results.read.records import Launch, read_checked, read_launches
from rankbench.stopping import LaunchHistory, find_ended

Average = Callable[[Sequence[float] | Values], Estimate]


def _alone(average: Average) -> Average:
    """The average without its interval.

    That of a row is across rounds, so it would contradict the bracket of its ratio,
    which is within rounds. Plots show the launches.
    """
    return lambda values: Estimate(average(values).value)


# Numbers of launches -> how they become a number of their row.
OF_LAUNCHES = {
    "throughput": _alone(statistics.geometric_mean),
    "step_ms": _alone(statistics.mean),
    "epoch_s": _alone(statistics.mean),
    "total_s": _alone(statistics.mean),
    "memory_mib": statistics.mean,
    "setup_memory_mib": statistics.mean,
    "accuracy": statistics.mean,
}

# A workload, and what sets cells apart from others of it, or "".
Group = tuple[str, str]

NO_STEADY_STATE = "no-steady-state"
DRIFTING = "drifting"
UNPAIRED = "unpaired"
GROUPED = "grouped"
SLOW_HOST = "slow-host"
ENVIRONMENT = "environment"
DETERMINISTIC = "deterministic"

# GPUs reach their power cap at full load, as their makers intend.
AT_FULL_LOAD = {"power cap"}

_NO_LAUNCHES = make_frame([])


@dataclass(frozen=True, eq=False, kw_only=True)
class Summary:
    """One row of the table: a planned cell, its latest attempt, and what it gives.

    Attributes:
        id: the readable identity of the cell.
        cell: the cell as the plan has it.
        status: one of `rankbench.record.STATUSES`.
        reason: None exactly if the status is ``ok``.
        marks: sorted: those of its launches and of the comparison with its bases.
        ok: launches that succeeded.
        wanted: launches that it needs; 0 if the cell cannot run here.
        attempt: None if there is no record.
        launches: the launches that succeeded, as of `launches.COLUMNS`; empty unless
            the row is ok. Those that another one replaces are left out.
        partial: the same, if none failed and others are to come; of a stale row the
            old ones.
        repeated: number of launches that another one replaces, as they were disturbed.
        estimated_mib: as the plan has it.
        damage: what is wrong with one of its files; the row is ``stale`` then.
        group: equal for cells that may be compared with each other.
        disturbed: places, from 0, of launches that are left out of all numbers.
        slow_host: which host holds it back, in words; None if none surely does.
        numbers: by column; empty unless the row is ok.
        speedup_base: the base of its workload: the first row of `single` on one device,
            or None.
        efficiency_base: the row on one device with the same settings: of `single`, or
            else of its own strategy, or None.
        paired: whether there were enough common rounds with the bases: without, there
            is no ratio; None without bases.
        fit: of all rows of its workload; None unless the row is ok.
        confidence: of each bracket of the table, so that all hold at once.
        look: number of times that launches were asked for, the first one included.
    """

    id: str
    cell: Cell
    status: str
    reason: str | None
    marks: tuple[str, ...] = ()
    ok: int
    wanted: int
    attempt: int | None
    launches: pd.DataFrame = field(default_factory=lambda: _NO_LAUNCHES, repr=False)
    partial: pd.DataFrame = field(default_factory=lambda: _NO_LAUNCHES, repr=False)
    repeated: int = 0
    estimated_mib: float | None = None
    damage: ValueError | None = None
    group: Group = ("", "")
    disturbed: tuple[int, ...] = ()
    slow_host: str | None = None
    numbers: Mapping[str, Estimate] = field(default_factory=dict)
    speedup_base: Summary | None = field(default=None, repr=False)
    efficiency_base: Summary | None = field(default=None, repr=False)
    paired: bool | None = None
    fit: Fit | None = field(default=None, repr=False)
    confidence: float = statistics.CONFIDENCE
    look: int = 1

    @property
    def devices(self) -> int:
        return self.cell.size.devices

    @property
    def rate(self) -> float:
        """The throughput of a row that is ok."""
        return self.numbers["throughput"].value

    @cached_property
    def counted(self) -> pd.DataFrame:
        """The launches that count: all but the disturbed ones."""
        if not self.disturbed:
            return self.launches
        return self.launches.drop(self.launches.index[list(self.disturbed)])

    @cached_property
    def records(self) -> list[Record]:
        """Those of its launches."""
        return self.launches["record"].tolist()

    @property
    def turns(self) -> list[tuple[Hashable, float]]:
        """Round and throughput of each launch."""
        columns = (self.launches[name].tolist() for name in ("turn", "throughput"))
        return list(zip(*columns, strict=True))

    @property
    def bases(self) -> list[Summary]:
        """The bases of speedup and efficiency, without repetition."""
        found = {b.id: b for b in (self.speedup_base, self.efficiency_base) if b}
        return list(found.values())


@dataclass(frozen=True, kw_only=True)
class ResultSet:
    """What was read of a result directory: sections are made from it.

    Attributes:
        experiment: its name.
        rows: of all cells, in the order of the plan.
        layout: the result directory.
        strict: whether a damaged file is an error; else its cell says so.
        study: the source of published numbers and its rows, if the experiment repeats a
            study, and the override that scaled its cells down, or None.
        peaks: precision -> 10^12 operations per second of a device, where the site
            file says so.
        price: of a device-hour, and its currency, where the site file says so.
        targets: what the experiment wants to be predicted.
        target: what time and samples are counted to: loss or accuracy, and its value.
        source: how commands name it: arguments for `rankbench_command`.
        has_blocks: whether the experiment file has several sweeps.
        description: of the experiment, by its author.
        links: two hosts -> `us` and `gb_s` of the network between them.
    """

    experiment: str
    rows: Sequence[Summary]
    layout: Layout
    strict: bool = False
    study: Mapping[str, Any] | None = None
    peaks: Mapping[str, float] = field(default_factory=dict)
    price: tuple[float, str] | None = None
    targets: tuple[PredictedCell, ...] = ()
    target: tuple[str, float] | None = None
    source: Mapping[str, Any] = field(default_factory=dict)
    has_blocks: bool = False
    description: str = ""
    links: Mapping[tuple[str, str], Record] = field(default_factory=dict)

    @cached_property
    def measured(self) -> list[Summary]:
        """The rows that are ok."""
        return [row for row in self.rows if row.status == "ok"]

    @cached_property
    def reasons(self) -> dict[tuple[str, str], list[str]]:
        """Status and reason -> ids of the rows that have no numbers because of that."""
        found: dict[tuple[str, str], list[str]] = {}
        for row in self.rows:
            if row.status != "ok":
                found.setdefault((row.status, row.reason or ""), []).append(row.id)
        return found

    @cached_property
    def panels(self) -> list[Panel]:
        """The rows that are ok, grouped by what may be compared."""
        return make_panels(self.rows)


def read(layout: Layout, *, strict: bool = False) -> ResultSet:
    """Read plan and records, measure the launches, and compare the rows.

    Args:
        layout: the result directory.
        strict: whether a damaged record, or damaged steps, are an error, as in a
            bundle; else the row of its cell is stale and names the file.

    Raises:
        ValueError: there is no plan, or it is damaged, or there is a link, or, if
            strict, another file is damaged; the message names it.
    """
    if not layout.plan.exists():
        raise ValueError(f"{layout.plan} does not exist: no experiment was run here")
    refuse_links(layout.root)
    value = read_checked(layout.plan, "plan", version=PLAN_VERSION)
    plan = parse_plan(value, layout.plan)
    if study := plan.experiment.get("study"):
        unknown = {row["cell"] for row in study["rows"]} - plan.cells.keys()
        if unknown:
            said = f"published rows of unknown cells: {', '.join(sorted(unknown))}"
            raise ValueError(f"{layout.plan} is damaged: {said}")
        study = study | {"override": plan.experiment["override"]}
    amount, _, currency = (plan.site.get("device_hour_price") or "").partition(" ")
    rows = _read_rows(layout, plan)
    for row in rows:
        if strict and row.damage:
            raise row.damage
    kept, damaged = layout.experiment, None if strict else list[ValueError]()
    checks = read_launches(layout.network, measured=False, damaged=damaged)
    links = [link for one in checks for link in one.record["network"]]
    return ResultSet(
        experiment=plan.name,
        rows=compare_rows(rows),
        layout=layout,
        strict=strict,
        study=study,
        peaks=plan.site.get("peak_tflops") or {},
        price=(float(amount), currency) if amount else None,
        targets=tuple(plan.predicted),
        target=next(iter((plan.experiment.get("target") or {}).items()), None),
        source=named_in(plan.experiment),
        has_blocks=kept.exists() and "\nblocks:" in kept.read_text(errors="replace"),
        description=plan.experiment.get("description") or "",
        links={(link["hosts"][0], link["hosts"][1]): link for link in links},
    )


# --- from records to rows -------------------------------------------------------------


def _read_rows(layout: Layout, plan: Plan) -> list[Summary]:
    """The latest attempt of each cell.

    A damaged file makes the row of its cell ``stale``, and no other.
    """
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
    made = [_make_row(layout, own, ended.get(own.planned.id)) for own in attempts]
    frame = make_frame([launch for _, measured in made for launch in measured])
    rows, begin = [], 0
    for row, measured in made:
        own, begin = frame[begin : begin + len(measured)], begin + len(measured)
        is_ok = row.status == "ok"
        rows.append(replace(row, launches=own) if is_ok else replace(row, partial=own))
    return rows


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
        """How many launches it needs."""
        planned = int(self.plan.experiment["launches"])
        if not self.launches:
            return planned
        asked = int(self.launches[-1].record["wanted"])
        return still_wanted(asked, planned, self.records)


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


def _make_row(
    layout: Layout, attempt: _Attempt, enough: int | None
) -> tuple[Summary, list[dict[str, Any]]]:
    """The row of a cell, and its launches that count, measured.

    Args:
        enough: how many launches it got, if the budget ended them.
    """
    planned = attempt.planned
    status, ok, number = "not-run", 0, attempt.number
    reason: str | None = NOT_MEASURED
    wanted, marks = attempt.wanted, set(planned.marks)
    measured: list[dict[str, Any]] = []
    damage = attempt.damage
    if planned.infeasible is not None:
        status, reason, wanted, number = "unsupported", planned.infeasible, 0, None
    elif number is not None:
        gate = [launch.record for launch in attempt.gate]
        suffices = wanted if enough is None else enough
        verdict = judge_attempt(gate, attempt.records, suffices, attempt.stale)
        status, reason, ok = verdict.status, verdict.reason, verdict.ok
        counted = counting(attempt.records)
        if status != "stale":
            marks |= _marks(counted, attempt)
            if enough is not None:
                marks.add(BUDGET)
        kept = set(map(id, counted))
        counts = [one for one in attempt.launches if id(one.record) in kept]
        is_good = all(record["status"] == "ok" for record in counted) and not damage
        if is_good and (status in ("ok", "stale") or not verdict.complete):
            try:
                measured = measure(counts, planned.cell.units_per_sample)
            except ValueError as error:
                damage = error
    if damage and planned.infeasible is None:
        status, reason = "stale", explain_damage(damage, layout.root)
    if status == "not-run":
        needs = find_needs([(planned.image, planned.cell.data, planned.id)])
        reason = explain_failures(layout, needs) or reason
    row = Summary(
        id=planned.id,
        cell=planned.cell,
        status=status,
        reason=reason,
        marks=tuple(sorted(marks)),
        ok=ok,
        wanted=wanted,
        attempt=number,
        repeated=len(repeated(attempt.records)),
        estimated_mib=planned.estimated_mib,
        damage=damage,
        group=(planned.cell.workload(), ""),
    )
    return row, measured


def _marks(records: Sequence[Record], attempt: _Attempt) -> set[str]:
    """Marks that follow from the records of an attempt."""
    planned = attempt.planned
    ok = [record for record in records if record["status"] == "ok"]
    found = {mark for record in records for mark in record["marks"]}
    # A launch that failed early may not know its code. Older records have the hash of
    # all code, which is another one.
    codes = [record["code"] for record in records]
    known = [code.get("cell", code.get("rank")) for code in codes]
    if any(code not in (None, planned.code) for code in known):
        found.add("other-code")
    if ok and planned.cell.strategy != REFERENCE and not all(r["gate"] for r in ok):
        found.add("unchecked")
    # In a job that cells share, the hosts of a smaller cell change by turns.
    alone = [r for r in ok if not (r["round"] or {}).get("devices")]
    if len({frozenset(host["host"] for host in r["hosts"]) for r in alone}) > 1:
        found.add("mixed-hosts")
    if len({r["software"]["torch"] for r in ok}) > 1:
        found.add("mixed-torch")
    devices = [device for record in ok for device in record["devices"]]
    if any(set(device["throttled"]) - AT_FULL_LOAD for device in devices):
        found.add("throttled")
    if any(map(disturbances, ok)):
        found.add(DISTURBED)
    if any(map(lacks_cores, ok)):
        found.add(OVERSUBSCRIBED)
    return found


# --- from rows to numbers -------------------------------------------------------------


def compare_rows(rows: Sequence[Summary]) -> list[Summary]:
    """The rows with estimates over their launches, and ratios to their bases."""
    ok = _group([row for row in rows if row.status == "ok"])
    groups: dict[Group, list[Summary]] = {}
    for row in ok:
        groups.setdefault(row.group, []).append(row)
    fits: dict[Group, Fit] = {}
    bases: dict[str, tuple[str | None, str | None]] = {}
    for group, alike in groups.items():
        fits[group] = Fit({row.id: row.turns for row in alike})
        bases |= find_bases({row.id: row.cell for row in alike})
    ratios = {(name, base) for name, own in bases.items() for base in own if base}
    asked = [{record["wanted"] for record in row.records} for row in ok]
    look = max(map(len, asked), default=1)
    count = sum(name != base for name, base in ratios)
    confidence = statistics.confidence_of_each(count, look=look)
    drifting = statistics.find_drifting(
        {r.id: r.launches["throughput"].tolist() for r in ok}
    )
    slow = find_slow_hosts(ok)
    measured = {}
    for row in ok:
        drifts = [DRIFTING] if row.id in drifting else []
        drifts += [SLOW_HOST] if row.id in slow else []
        fit = fits[row.group]
        own = replace(
            row,
            marks=(*row.marks, *drifts),
            disturbed=tuple(fit.disturbed[row.id]),
            slow_host=slow.get(row.id),
            fit=fit,
            confidence=confidence,
            look=look,
        )
        measured[row.id] = replace(own, numbers=_estimate(own))
    return [
        _compare(measured[row.id], measured, bases[row.id])
        if row.id in measured
        else row
        for row in rows
    ]


def _group(rows: Sequence[Summary]) -> list[Summary]:
    """The rows with their groups: those of a workload that ran with equal settings.

    A row whose launches differ in settings of libraries, or whose ranks train alone,
    has no equal. A mark names the variables in which launches of its workload differ.
    """
    grouped: dict[str, Summary] = {}
    workloads: dict[str, list[Summary]] = {}
    for row in rows:
        workloads.setdefault(row.cell.workload(), []).append(row)
    for workload, alternatives in workloads.items():
        settings: dict[str, set[frozenset[tuple[str, str]]]] = {}
        for row in alternatives:
            known = [record["launcher"].get("settings") for record in row.records]
            settings[row.id] = {
                frozenset(found.items()) for found in known if found is not None
            }
        every = set().union(*settings.values())
        shared = frozenset.intersection(*every) if every else frozenset()
        names = sorted({name for found in every for name, _ in found - shared})
        for row in alternatives:
            own = dict(next(iter(settings[row.id]), ((n, "unknown") for n in names)))
            values = (f"{n}={own.get(n, 'unset')}" for n in names)
            group = workload, " ".join(values)
            if NO_EXCHANGE in row.marks:
                group = workload + row.id, "no exchange of gradients"
            elif len(settings[row.id]) > 1:
                group = workload + row.id, f"mixed {', '.join(names)}"
            differ = [f"{ENVIRONMENT}({','.join(names)})"] if names else []
            marks = (*row.marks, *differ)
            grouped[row.id] = replace(row, group=group, marks=marks)
    return [grouped[row.id] for row in rows]


def _estimate(row: Summary) -> dict[str, Estimate]:
    """The numbers of a row that need no other row."""
    counted = row.counted
    columns = {name: counted[name].to_numpy() for name in OF_LAUNCHES}
    numbers = {
        name: OF_LAUNCHES[name](values)
        for name, values in columns.items()
        if not np.isnan(values).any()
    }
    # Launches that all train the same have no interval.
    agrees = len({*columns["accuracy"]}) == 1
    if "accuracy" in numbers and len(counted) > 1 and agrees:
        numbers["accuracy"] = replace(numbers["accuracy"], verdict=DETERMINISTIC)
    return numbers


def _compare(
    row: Summary,
    rows: Mapping[str, Summary],
    bases: tuple[str | None, str | None],
) -> Summary:
    """The row with its ratios to its bases.

    Args:
        bases: ids: of its speedup, and of its efficiency.
    """
    fit, numbers, paired = row.fit, dict(row.numbers), None
    assert fit is not None
    factors = {"speedup": 1.0, "efficiency": 1 / row.devices}
    for (column, factor), base in zip(factors.items(), bases, strict=True):
        if base == row.id:
            # The ratio of the base itself is 1, without an interval.
            numbers[column] = Estimate(1.0)
        elif base is not None:
            found = fit.ratio(row.id, base)
            paired = paired is not False and found is not None
            if found is not None:
                ratio = found.bracket(row.confidence).scaled(factor)
                numbers[column] = replace(ratio, verdict=statistics.judge(ratio))
    speedup_base, efficiency_base = (rows[base] if base else None for base in bases)
    compared = [row, *(one for one in (speedup_base, efficiency_base) if one)]
    marks = {
        DISTURBED: bool(row.disturbed),
        GROUPED: row.id in fit.grouped,
        "mixed-torch": len({v for one in compared for v in one.launches["torch"]}) > 1,
        NO_STEADY_STATE: not row.launches["steady"].all(),
        UNPAIRED: paired is False,
    }
    return replace(
        row,
        marks=tuple(sorted({*row.marks, *(name for name in marks if marks[name])})),
        numbers=numbers,
        speedup_base=speedup_base,
        efficiency_base=efficiency_base,
        paired=paired,
    )
