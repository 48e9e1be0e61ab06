"""Rows with their numbers: estimates over launches, and ratios to a named base."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rankbench.cell import find_base
from rankbench.results.numbers.difference import adjust, trend
from rankbench.results.numbers.measures import Measures, measure
from rankbench.results.numbers.ratios import Ratio, find_ratio, judge_ratios
from rankbench.results.numbers.statistics import CONFIDENCE, Estimate, median
from rankbench.results.read.rows import Results, Row
from rankbench.stopping import round_of

OF_LAUNCHES = ("throughput", "step_ms", "epoch_s", "total_s", "memory_mib", "accuracy")

# Fields in which a cell and the cell of its own strategy on one device may differ.
_FREE_OF_OWN = ("topology", "oversubscribe")

NO_STEADY_STATE = "no-steady-state"
DRIFTING = "drifting"
UNPAIRED = "unpaired"
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
        numbers: by column; empty unless the row is ok.
        speedup_base: `single` on one device, or None.
        efficiency_base: the same; in a workload without such a row the strategy's own
            row on one device, or None.
        paired: whether the ratios are of launches within rounds; None without ratios.
    """

    row: Row
    group: str
    marks: tuple[str, ...]
    measures: tuple[Measures, ...]
    numbers: Mapping[str, Estimate]
    speedup_base: Base | None
    efficiency_base: Base | None
    paired: bool | None = None

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
    compared = _compare(ok, measures)
    drifting = _find_drifting(measures)
    return [
        _summarise(row, compared.get(row.id), measures, row.id in drifting)
        for row in results.rows
    ]


@dataclass(frozen=True, slots=True)
class _Compared:
    """The ratios of a row, with what they are relative to."""

    single: Row | None
    same: Row | None
    speedup: Ratio | None
    efficiency: Ratio | None
    verdicts: Mapping[str, str]


def _compare(
    rows: Sequence[Row], measures: Mapping[str, tuple[Measures, ...]]
) -> dict[str, _Compared]:
    """The ratios of all rows; their verdicts are corrected for the number of rows."""
    bases = _Bases(rows)
    by_round = {
        row.id: {
            one: launch.throughput
            for one, launch in _by_round(row, measures[row.id]).items()
        }
        for row in rows
    }
    pairs = {row.id: (bases.single(row), bases.of_efficiency(row)) for row in rows}

    def find(row: Row, base: Row | None, factor: float = 1.0) -> Ratio | None:
        if base is None or base.id == row.id:
            return None
        return find_ratio(by_round[row.id], by_round[base.id], factor=factor)

    speedups = {row.id: find(row, pairs[row.id][0]) for row in rows}
    efficiencies = {
        row.id: find(row, pairs[row.id][1], 1 / row.devices) for row in rows
    }
    judged = [
        judge_ratios({name: ratio for name, ratio in found.items() if ratio})
        for found in (speedups, efficiencies)
    ]
    return {
        row.id: _Compared(
            *pairs[row.id],
            speedups[row.id],
            efficiencies[row.id],
            {
                name: verdicts.get(row.id, "")
                for name, verdicts in zip(
                    ("speedup", "efficiency"), judged, strict=True
                )
            },
        )
        for row in rows
    }


def launches_by_round(summary: Summary) -> dict[Any, Measures]:
    """The launches of a row by round; one outside of rounds has a key of its own."""
    return _by_round(summary.row, summary.measures)


def _by_round(row: Row, measures: Sequence[Measures]) -> dict[Any, Measures]:
    return {
        round_of(launch.record) or (row.id, launch.number): one
        for launch, one in zip(row.launches, measures, strict=True)
    }


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
    row: Row,
    compared: _Compared | None,
    measures: Mapping[str, tuple[Measures, ...]],
    is_drifting: bool,
) -> Summary:
    own = measures[row.id]
    numbers: dict[str, Estimate] = {}
    marks, paired = set(row.marks), None
    single = same = None
    if compared is not None:
        for name in OF_LAUNCHES:
            values = [getattr(one, name) for one in own]
            if None not in values:
                numbers[name] = median(values)
        # Launches that all train the same have no interval.
        if len(own) > 1 and len({one.accuracy for one in own} - {None}) == 1:
            always = replace(numbers["accuracy"], verdict=DETERMINISTIC)
            numbers["accuracy"] = always
        single, same = compared.single, compared.same
        numbers |= _show_ratios(row, compared)
        ratios = [one for one in (compared.speedup, compared.efficiency) if one]
        if ratios:
            paired = all(one.paired for one in ratios)
            marks |= set() if paired else {UNPAIRED}
        alternatives = [row, *(base for base in (single, same) if base)]
        builds = {one.torch for each in alternatives for one in measures[each.id]}
        marks |= {"mixed-torch"} if len(builds) > 1 else set()
        marks |= set() if all(one.steady for one in own) else {NO_STEADY_STATE}
        marks |= {DRIFTING} if is_drifting else set()
    return Summary(
        row=row,
        group=row.cell.workload(),
        marks=tuple(sorted(marks)),
        measures=own,
        numbers=numbers,
        speedup_base=_base(single, measures),
        efficiency_base=_base(same, measures),
        paired=paired,
    )


def _show_ratios(row: Row, compared: _Compared) -> dict[str, Estimate]:
    """The columns of ratios; the base itself has 1, without an interval."""
    found = {}
    for name, base, ratio in (
        ("speedup", compared.single, compared.speedup),
        ("efficiency", compared.same, compared.efficiency),
    ):
        if ratio is not None:
            found[name] = replace(ratio.estimate, verdict=compared.verdicts[name])
        elif base is not None:
            found[name] = Estimate(1.0)
    return found


class _Bases:
    """Rows on one device that others are compared with."""

    def __init__(self, ok: Iterable[Row]) -> None:
        self._single: dict[str, list[Row]] = {}
        self._own: dict[str, Row] = {}
        for row in ok:
            if row.cell.topology == "1x1":
                self._own.setdefault(row.cell.workload(_FREE_OF_OWN), row)
                if row.cell.is_base:
                    self._single.setdefault(row.cell.workload(), []).append(row)

    def single(self, row: Row) -> Row | None:
        """The row of `single`; see `find_base`."""
        alike = {one.id: one for one in self._single.get(row.cell.workload(), ())}
        cells = {name: one.cell for name, one in alike.items()}
        base = find_base(row.id, {row.id: row.cell, **cells})
        return None if base is None else alike[base]

    def of_efficiency(self, row: Row) -> Row | None:
        """The same row for all rows of a workload, if there is one of `single`."""
        own = self._own.get(row.cell.workload(_FREE_OF_OWN))
        return self.single(row) or own


def _base(row: Row | None, measures: Mapping[str, tuple[Measures, ...]]) -> Base | None:
    if row is None:
        return None
    rate = median([one.throughput for one in measures[row.id]])
    return Base(row.id, rate, row.cell.unit)
