"""Rows with their numbers: estimates over launches, and ratios to a named base."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rankbench.cell import find_base
from rankbench.disturbance import DISTURBED
from rankbench.record import NO_EXCHANGE, round_of
from rankbench.results.numbers.fit import Fit, confidence_of_each, judge
from rankbench.results.numbers.measures import Measures, measure
from rankbench.results.numbers.statistics import (
    CONFIDENCE,
    Estimate,
    adjust,
    geometric_mean,
    mean,
    trend,
)
from rankbench.results.read.launches import Launch
from rankbench.results.read.rows import Results, Row

# Numbers of launches -> how they become a number of their row.
OF_LAUNCHES = {
    "throughput": geometric_mean,
    "step_ms": mean,
    "epoch_s": mean,
    "total_s": mean,
    "memory_mib": mean,
    "setup_memory_mib": mean,
    "accuracy": mean,
}

# Fields in which a cell and the cell of its own strategy on one device may differ.
_FREE_OF_OWN = ("topology", "oversubscribe")

NO_STEADY_STATE = "no-steady-state"
DRIFTING = "drifting"
UNPAIRED = "unpaired"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One row of the table.

    Attributes:
        row: the cell and its status.
        group: equal for cells that may be compared with each other.
        marks: those of the row, of its launches and of the comparison with its bases.
        measures: by launch; empty unless the row is ok.
        disturbed: places, from 0, of launches that are left out of all numbers.
        numbers: by column; empty unless the row is ok.
        speedup_base: `single` on one device, or None.
        fit: of all rows of its workload; None unless the row is ok.
        efficiency_base: the same; in a workload without such a row the strategy's own
            row on one device, or None.
        paired: whether the ratios are of launches within rounds; None without ratios.
    """

    row: Row
    group: str
    marks: tuple[str, ...]
    measures: tuple[Measures, ...] = ()
    disturbed: tuple[int, ...] = ()
    numbers: Mapping[str, Estimate] = field(default_factory=dict)
    speedup_base: Base | None = None
    efficiency_base: Base | None = None
    paired: bool | None = None
    fit: Fit | None = field(default=None, repr=False, compare=False)

    @property
    def counted(self) -> list[Measures]:
        """The launches that count: all but the disturbed ones."""
        return [one for n, one in enumerate(self.measures) if n not in self.disturbed]

    @property
    def counted_launches(self) -> list[Launch]:
        """The same launches, with their records."""
        launches = enumerate(self.row.launches)
        return [launch for n, launch in launches if n not in self.disturbed]

    @property
    def bases(self) -> list[Base]:
        """The bases of speedup and efficiency, without repetition."""
        found = {b.id: b for b in (self.speedup_base, self.efficiency_base) if b}
        return list(found.values())


def summarise(results: Results) -> list[Summary]:
    """Measure the launches of every row that is ok and compare the rows.

    Raises:
        ValueError: a record or its steps are damaged; the message names the file.
    """
    measures = {
        row.id: tuple(
            measure(launch, row.cell.units_per_sample) for launch in row.launches
        )
        for row in results.rows
    }
    ok = [row for row in results.rows if row.status == "ok"]
    alike = _Alike(ok)
    comparison = _Comparison(ok, measures, alike)
    drifting = _find_drifting(measures)
    return [
        _summarise(row, comparison, alike, row.id in drifting)
        if row.status == "ok"
        else Summary(row=row, group=row.cell.workload(), marks=row.marks)
        for row in results.rows
    ]


class _Alike:
    """Which rows may be compared: those of a workload that ran with equal settings.

    A row whose launches differ in them, or whose ranks train alone, has no equal.

    Attributes:
        groups: id of a row -> its group.
        marks: id of a row -> a mark that names the variables in which launches of its
            workload differ; ids of other rows are not there.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self.groups: dict[str, str] = {}
        self.marks: dict[str, str] = {}
        workloads: dict[str, list[Row]] = {}
        for row in rows:
            workloads.setdefault(row.cell.workload(), []).append(row)
        for workload, alternatives in workloads.items():
            settings = {row.id: _settings_of(row) for row in alternatives}
            every = set().union(*settings.values())
            shared = frozenset.intersection(*every) if every else frozenset()
            names = sorted({name for one in every for name, _ in one - shared})
            for row in alternatives:
                own = settings[row.id]
                alone = len(own) > 1 or NO_EXCHANGE in row.marks
                which = row.id if alone else sorted(next(iter(own), ()))
                self.groups[row.id] = f"{workload} {which if alone or names else ''}"
                if names:
                    self.marks[row.id] = f"{ENVIRONMENT}({','.join(names)})"


def _settings_of(row: Row) -> set[frozenset[tuple[str, str]]]:
    """All settings of libraries with which launches of a row ran."""
    launchers = [launch.record.get("launcher") or {} for launch in row.launches]
    known = [one["settings"] for one in launchers if one.get("settings") is not None]
    return {frozenset(one.items()) for one in known}


class _Comparison:
    """Rows that are ok, beside the bases of their ratios.

    Attributes:
        measures: of the launches of each row.
        bases: the bases of the speedup and of the efficiency of each row.
        fits: of the workload of each row.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        measures: Mapping[str, tuple[Measures, ...]],
        alike: _Alike,
    ) -> None:
        self.measures = measures
        found = _Bases(rows, alike)
        self.bases = {
            row.id: (found.single(row), found.of_efficiency(row)) for row in rows
        }
        ratios = {
            (name, base.id) for name, own in self.bases.items() for base in own if base
        }
        self._confidence = confidence_of_each(sum(a != b for a, b in ratios))
        workloads: dict[str, list[Row]] = {}
        for row in rows:
            workloads.setdefault(alike.groups[row.id], []).append(row)
        self.fits: dict[str, Fit] = {}
        for alternatives in workloads.values():
            fit = Fit(
                {one.id: throughput_by_round(one, measures) for one in alternatives}
            )
            self.fits |= dict.fromkeys([one.id for one in alternatives], fit)

    def disturbed(self, row: Row) -> tuple[int, ...]:
        """Places of the launches that are left out of all numbers."""
        return tuple(self.fits[row.id].disturbed[row.id])

    def counted(self, row: Row) -> list[Measures]:
        """The other launches."""
        left_out = self.disturbed(row)
        own = enumerate(self.measures[row.id])
        return [one for place, one in own if place not in left_out]

    def ratio(self, row: Row, base: Row, factor: float = 1.0) -> Estimate:
        """The ratio of a row to its base, times a factor, with its verdict.

        The ratio of the base itself is 1, without an interval.
        """
        if base.id == row.id:
            return Estimate(1.0)
        ratio = self.fits[row.id].ratio(row.id, base.id)
        bracket = ratio.bracket(self._confidence).scaled(factor)
        return replace(bracket, verdict=judge(bracket))

    def describe(self, base: Row | None) -> Base | None:
        """A base with its absolute value."""
        if base is None:
            return None
        rates = [one.throughput for one in self.counted(base)]
        return Base(base.id, geometric_mean(rates), base.cell.unit)

    def is_paired(self, row: Row) -> bool | None:
        """Whether its ratios are of launches within rounds; None without ratios."""
        bases = {base.id for base in self.bases[row.id] if base} - {row.id}
        fit = self.fits[row.id]
        return all(fit.is_paired(row.id, base) for base in bases) if bases else None


def throughput_by_round(
    row: Row, measures: Mapping[str, Sequence[Measures]]
) -> list[tuple[Hashable, float]]:
    """Round and throughput of each launch of a row."""
    launches = zip(_rounds(row), measures[row.id], strict=True)
    return [(key, launch.throughput) for key, launch in launches]


def counted_by_round(summary: Summary) -> dict[Hashable, Measures]:
    """The launches of a row that count, by round."""
    launches = enumerate(zip(_rounds(summary.row), summary.measures, strict=True))
    return dict(one for place, one in launches if place not in summary.disturbed)


def _rounds(row: Row) -> list[Hashable]:
    """The round of each launch; one outside of rounds has a key of its own."""
    return [
        round_of(launch.record) or (row.id, launch.number) for launch in row.launches
    ]


def _find_drifting(measures: Mapping[str, tuple[Measures, ...]]) -> set[str]:
    """Rows whose launches grew faster or slower; corrected for the number of rows."""
    chances = {
        name: chance
        for name, own in measures.items()
        if (chance := trend([one.throughput for one in own])) is not None
    }
    adjusted = zip(chances, adjust(list(chances.values())), strict=True)
    return {name for name, chance in adjusted if chance <= 1 - CONFIDENCE}


def _summarise(
    row: Row, comparison: _Comparison, alike: _Alike, is_drifting: bool
) -> Summary:
    measures = comparison.measures
    own, counted = measures[row.id], comparison.counted(row)
    numbers = {
        name: average(values)
        for name, average in OF_LAUNCHES.items()
        if None not in (values := [getattr(one, name) for one in counted])
    }
    # Launches that all train the same have no interval.
    agrees = len({one.accuracy for one in counted}) == 1
    if "accuracy" in numbers and len(counted) > 1 and agrees:
        numbers["accuracy"] = replace(numbers["accuracy"], verdict=DETERMINISTIC)
    single, same = comparison.bases[row.id]
    if single:
        numbers["speedup"] = comparison.ratio(row, single)
    if same:
        numbers["efficiency"] = comparison.ratio(row, same, 1 / row.devices)
    alternatives = [row, *(base for base in (single, same) if base)]
    builds = {one.torch for each in alternatives for one in measures[each.id]}
    paired = comparison.is_paired(row)
    marks = {
        DISTURBED: len(counted) < len(own),
        DRIFTING: is_drifting,
        "mixed-torch": len(builds) > 1,
        NO_STEADY_STATE: not all(one.steady for one in own),
        UNPAIRED: paired is False,
    }
    named = {name for name in marks if marks[name]}
    named |= {alike.marks[row.id]} if row.id in alike.marks else set()
    return Summary(
        row=row,
        group=alike.groups[row.id],
        marks=tuple(sorted({*row.marks, *named})),
        measures=own,
        disturbed=comparison.disturbed(row),
        numbers=numbers,
        speedup_base=comparison.describe(single),
        efficiency_base=comparison.describe(same),
        paired=paired,
        fit=comparison.fits[row.id],
    )


class _Bases:
    """Rows on one device that others are compared with."""

    def __init__(self, ok: Iterable[Row], alike: _Alike) -> None:
        self._groups = alike.groups
        self._single: dict[str, list[Row]] = {}
        self._own: dict[tuple[str, str], Row] = {}
        for row in ok:
            if row.cell.topology == "1x1":
                self._own.setdefault(self._key(row), row)
                if row.cell.is_base:
                    self._single.setdefault(alike.groups[row.id], []).append(row)

    def _key(self, row: Row) -> tuple[str, str]:
        return self._groups[row.id], row.cell.workload(_FREE_OF_OWN)

    def single(self, row: Row) -> Row | None:
        """The row of `single`; see `find_base`."""
        alike = {one.id: one for one in self._single.get(self._groups[row.id], ())}
        cells = {name: one.cell for name, one in alike.items()}
        base = find_base(row.id, {row.id: row.cell, **cells})
        return None if base is None else alike[base]

    def of_efficiency(self, row: Row) -> Row | None:
        """The same row for all rows of a workload, if there is one of `single`."""
        own = self._own.get(self._key(row))
        return self.single(row) or own
