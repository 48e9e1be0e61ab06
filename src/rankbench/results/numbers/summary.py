"""Rows with their numbers: estimates over launches, and ratios to a named base."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rankbench.cell import find_bases
from rankbench.record import DISTURBED, NO_EXCHANGE
from rankbench.results.numbers.fit import (
    Fit,
    confidence_of_each,
    find_drifting,
    judge,
)
from rankbench.results.numbers.measures import Measures, measure
from rankbench.results.numbers.statistics import (
    CONFIDENCE,
    Estimate,
    geometric_mean,
    mean,
)
from rankbench.results.read.rows import Results, Row

Average = Callable[[Sequence[float]], Estimate]


def _alone(average: Average) -> Average:
    """The average without its interval.

    That of a row is across rounds, so it would contradict the bracket of its ratio,
    which is within rounds. Plots show the launches.
    """
    return lambda values: Estimate(average(values).value)


# Numbers of launches -> how they become a number of their row.
OF_LAUNCHES = {
    "throughput": _alone(geometric_mean),
    "step_ms": _alone(mean),
    "epoch_s": _alone(mean),
    "total_s": _alone(mean),
    "memory_mib": mean,
    "setup_memory_mib": mean,
    "accuracy": mean,
}

# A workload, and what sets cells apart from others of it, or "".
Group = tuple[str, str]

NO_STEADY_STATE = "no-steady-state"
DRIFTING = "drifting"
UNPAIRED = "unpaired"
GROUPED = "grouped"
ENVIRONMENT = "environment"
DETERMINISTIC = "deterministic"


@dataclass(frozen=True, slots=True)
class Base:
    """A cell that others are compared with, and its absolute value.

    Attributes:
        unit: what throughput counts per second: samples or tokens.
    """

    id: str
    throughput: Estimate
    unit: str = "samples"


@dataclass(frozen=True, kw_only=True)
class Summary(Row):
    """One row of the table: a cell, its launches, and what they give.

    Attributes:
        group: equal for cells that may be compared with each other.
        marks: those of its launches and of the comparison with its bases.
        measures: by launch; empty unless the row is ok.
        disturbed: places, from 0, of launches that are left out of all numbers.
        numbers: by column; empty unless the row is ok.
        speedup_base: the base of its workload: the first row of `single` on one device,
            or None.
        fit: of all rows of its workload; None unless the row is ok.
        confidence: of each bracket of the table, so that all hold at once.
        look: number of times that launches were asked for, the first one included.
        efficiency_base: the row on one device with the same settings: of `single`, or
            else of its own strategy, or None.
        paired: whether there were enough common rounds with the bases: without, there
            is no ratio; None without bases.
    """

    group: Group
    measures: tuple[Measures, ...] = ()
    disturbed: tuple[int, ...] = ()
    numbers: Mapping[str, Estimate] = field(default_factory=dict)
    speedup_base: Base | None = None
    efficiency_base: Base | None = None
    paired: bool | None = None
    fit: Fit | None = field(default=None, repr=False, compare=False)
    confidence: float = CONFIDENCE
    look: int = 1

    @property
    def counted(self) -> list[Measures]:
        """The launches that count: all but the disturbed ones."""
        return [
            launch for n, launch in enumerate(self.measures) if n not in self.disturbed
        ]

    @property
    def bases(self) -> list[Base]:
        """The bases of speedup and efficiency, without repetition."""
        found = {b.id: b for b in (self.speedup_base, self.efficiency_base) if b}
        return list(found.values())


def measure_row(row: Row) -> tuple[Row, tuple[Measures, ...]]:
    """Reduce the launches of a row; it is stale without them if one is damaged."""
    units = row.cell.units_per_sample
    try:
        return row, tuple(measure(launch, units) for launch in row.launches)
    except ValueError as error:
        # records/CELL/ATTEMPT/LAUNCH
        root = row.launches[0].directory.parents[3]
        return row.without_launches(error, root), ()


def summarise(results: Results) -> list[Summary]:
    """Measure the launches of every row that is ok and compare the rows."""
    measured = [measure_row(row) for row in results.rows]
    all_rows, measures = [row for row, _ in measured], {r.id: m for r, m in measured}
    ok = [row for row in all_rows if row.status == "ok"]
    groups, marks = _find_groups(ok)
    launches: dict[Group, dict[str, list[tuple[Hashable, float]]]] = {}
    for row in ok:
        own = [(launch.turn, launch.throughput) for launch in measures[row.id]]
        launches.setdefault(groups[row.id], {})[row.id] = own
    fits = {group: Fit(alike) for group, alike in launches.items()}
    bases = _find_bases(ok, groups)
    ratios = {(name, base.id) for name, own in bases.items() for base in own if base}
    count = sum(name != base for name, base in ratios)
    asked = [{launch.record["wanted"] for launch in row.launches} for row in ok]
    look = max(map(len, asked), default=1)
    confidence = confidence_of_each(count, look=look)
    drifting = find_drifting(
        {name: [launch.throughput for launch in own] for name, own in measures.items()}
    )
    rows = {
        row.id: Summary(
            **vars(_mark(row, marks[row.id], row.id in drifting)),
            group=groups[row.id],
            measures=measures[row.id],
            disturbed=tuple(fits[groups[row.id]].disturbed[row.id]),
            fit=fits[groups[row.id]],
            confidence=confidence,
            look=look,
        )
        for row in ok
    }
    return [
        _compare(
            rows[row.id], *(rows[base.id] if base else None for base in bases[row.id])
        )
        if row.id in rows
        else Summary(**vars(row), group=(row.cell.workload(), ""))
        for row in all_rows
    ]


def _mark(row: Row, marks: Sequence[str], drifts: bool) -> Row:
    return replace(row, marks=(*row.marks, *marks, *([DRIFTING] if drifts else [])))


def _find_groups(rows: Sequence[Row]) -> tuple[dict[str, Group], dict[str, list[str]]]:
    """Which rows may be compared: those of a workload that ran with equal settings.

    A row whose launches differ in settings of libraries, or whose ranks train alone,
    has no equal.

    Returns:
        Id -> group; and id -> marks that name the variables in which launches of its
        workload differ.
    """
    groups: dict[str, Group] = {}
    marks: dict[str, list[str]] = {}
    workloads: dict[str, list[Row]] = {}
    for row in rows:
        workloads.setdefault(row.cell.workload(), []).append(row)
    for workload, alternatives in workloads.items():
        settings: dict[str, set[frozenset[tuple[str, str]]]] = {}
        for row in alternatives:
            launchers = [launch.record.get("launcher") or {} for launch in row.launches]
            known = [found.get("settings") for found in launchers]
            settings[row.id] = {
                frozenset(found.items()) for found in known if found is not None
            }
        every = set().union(*settings.values())
        shared = frozenset.intersection(*every) if every else frozenset()
        names = sorted({name for found in every for name, _ in found - shared})
        for row in alternatives:
            own = dict(next(iter(settings[row.id]), ((n, "unknown") for n in names)))
            values = (f"{n}={own.get(n, 'unset')}" for n in names)
            groups[row.id] = workload, " ".join(values)
            if NO_EXCHANGE in row.marks:
                groups[row.id] = workload + row.id, "no exchange of gradients"
            elif len(settings[row.id]) > 1:
                groups[row.id] = workload + row.id, f"mixed {', '.join(names)}"
            marks[row.id] = [f"{ENVIRONMENT}({','.join(names)})"] if names else []
    return groups, marks


def _find_bases(
    rows: Sequence[Row], groups: Mapping[str, Group]
) -> dict[str, tuple[Row | None, Row | None]]:
    """The rows that speedup and efficiency are relative to; both within its group."""
    known = {row.id: row for row in rows}
    members: dict[Group, list[Row]] = {}
    for row in rows:
        members.setdefault(groups[row.id], []).append(row)
    return {
        name: (known[first] if first else None, known[alone] if alone else None)
        for alike in members.values()
        for name, (first, alone) in find_bases(
            {row.id: row.cell for row in alike}
        ).items()
    }


def _compare(summary: Summary, single: Summary | None, same: Summary | None) -> Summary:
    """The summary with its numbers, and its ratios to its bases."""
    counted, fit = summary.counted, summary.fit
    assert fit is not None
    numbers = {
        name: average(values)
        for name, average in OF_LAUNCHES.items()
        if None not in (values := [getattr(launch, name) for launch in counted])
    }
    # Launches that all train the same have no interval.
    agrees = len({launch.accuracy for launch in counted}) == 1
    if "accuracy" in numbers and len(counted) > 1 and agrees:
        numbers["accuracy"] = replace(numbers["accuracy"], verdict=DETERMINISTIC)
    paired = None
    for column, base, factor in (
        ("speedup", single, 1.0),
        ("efficiency", same, 1 / summary.devices),
    ):
        if base is not None:
            if base.id == summary.id:
                # The ratio of the base itself is 1, without an interval.
                numbers[column] = Estimate(1.0)
                continue
            found = fit.ratio(summary.id, base.id)
            paired = paired is not False and found is not None
            if found is not None:
                ratio = found.bracket(summary.confidence).scaled(factor)
                numbers[column] = replace(ratio, verdict=judge(ratio))
    bases = [base for base in (single, same) if base]
    every = [*summary.measures, *(m for base in bases for m in base.measures)]
    marks = {
        DISTURBED: bool(summary.disturbed),
        GROUPED: summary.id in fit.grouped,
        "mixed-torch": len({launch.torch for launch in every}) > 1,
        NO_STEADY_STATE: not all(launch.steady for launch in summary.measures),
        UNPAIRED: paired is False,
    }
    return replace(
        summary,
        marks=tuple(sorted({*summary.marks, *(name for name in marks if marks[name])})),
        numbers=numbers,
        speedup_base=_describe_base(single) if single else None,
        efficiency_base=_describe_base(same) if same else None,
        paired=paired,
    )


def _describe_base(base: Summary) -> Base:
    """A base with its absolute value."""
    rate = OF_LAUNCHES["throughput"]([launch.throughput for launch in base.counted])
    return Base(base.id, rate, base.cell.unit)
