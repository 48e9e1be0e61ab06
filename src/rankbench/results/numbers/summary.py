"""Rows with their numbers: estimates over launches, and ratios to a named base."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rankbench.cell import Cell
from rankbench.results.numbers.measures import Measures, measure
from rankbench.results.numbers.statistics import Estimate, median, ratio_of_medians
from rankbench.results.read.rows import Results, Row

OF_LAUNCHES = ("throughput", "step_ms", "epoch_s", "total_s", "memory_mib", "accuracy")

# Fields in which a cell and its base may differ. Everything else, such as the model or
# the batch size, must agree, or the ratio would mean something else.
FREE_OF_SINGLE = (
    "strategy",
    "options",
    "backend",
    "topology",
    "launcher",
    "init_method",
    "gpudirect",
    "oversubscribe",
)
_FREE_OF_OWN = ("topology", "oversubscribe")

NO_STEADY_STATE = "no-steady-state"


@dataclass(frozen=True, slots=True)
class Base:
    """A cell that others are compared with, and its absolute value in samples/s."""

    id: str
    throughput: Estimate


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
        efficiency_base: the strategy's own 1x1, or else `single`, or None.
    """

    row: Row
    group: str
    marks: tuple[str, ...]
    measures: tuple[Measures, ...]
    numbers: Mapping[str, Estimate]
    speedup_base: Base | None
    efficiency_base: Base | None

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
        row.id: tuple(measure(launch) for launch in row.launches)
        for row in results.rows
    }
    bases = _Bases(row for row in results.rows if row.status == "ok")
    return [_summarise(row, bases, measures) for row in results.rows]


def _summarise(
    row: Row, bases: _Bases, measures: Mapping[str, tuple[Measures, ...]]
) -> Summary:
    own = measures[row.id]
    numbers: dict[str, Estimate] = {}
    single = same = None
    marks = set(row.marks)
    if row.status == "ok":
        for name in OF_LAUNCHES:
            values = [getattr(one, name) for one in own]
            if None not in values:
                numbers[name] = median(values)
        single = bases.single(row)
        same = bases.own(row) or single
        if single:
            numbers["speedup"] = _ratio(row, single, measures)
        if same:
            ratio = _ratio(row, same, measures)
            numbers["efficiency"] = ratio.scaled(1 / row.devices)
        compared = [row, *(base for base in (single, same) if base)]
        if len({one.torch for each in compared for one in measures[each.id]}) > 1:
            marks.add("mixed-torch")
        if 2 * sum(not one.steady for one in own) >= len(own):
            marks.add(NO_STEADY_STATE)
    return Summary(
        row=row,
        group=_key(row.cell, FREE_OF_SINGLE),
        marks=tuple(sorted(marks)),
        measures=own,
        numbers=numbers,
        speedup_base=_base(single, measures),
        efficiency_base=_base(same, measures),
    )


class _Bases:
    """Rows on one device that others are compared with."""

    def __init__(self, ok: Iterable[Row]) -> None:
        self._single: dict[str, list[Row]] = {}
        self._own: dict[str, Row] = {}
        for row in ok:
            if row.cell.topology == "1x1":
                self._own.setdefault(_key(row.cell, _FREE_OF_OWN), row)
                if row.cell.strategy == "single":
                    key = _key(row.cell, FREE_OF_SINGLE)
                    self._single.setdefault(key, []).append(row)

    def single(self, row: Row) -> Row | None:
        """The row of `single`: of several, this row itself or one of its launcher."""
        return min(
            self._single.get(_key(row.cell, FREE_OF_SINGLE), ()),
            key=lambda other: (
                other.id != row.id,
                other.cell.launcher != row.cell.launcher,
                other.cell.init_method != row.cell.init_method,
            ),
            default=None,
        )

    def own(self, row: Row) -> Row | None:
        """The row of the same strategy on one device."""
        return self._own.get(_key(row.cell, _FREE_OF_OWN))


def _ratio(
    row: Row, base: Row, measures: Mapping[str, tuple[Measures, ...]]
) -> Estimate:
    if row.id == base.id:
        return Estimate(1.0)
    return ratio_of_medians(
        [one.throughput for one in measures[row.id]],
        [one.throughput for one in measures[base.id]],
    )


def _base(row: Row | None, measures: Mapping[str, tuple[Measures, ...]]) -> Base | None:
    if row is None:
        return None
    return Base(row.id, median([one.throughput for one in measures[row.id]]))


def _key(cell: Cell, without: Sequence[str]) -> str:
    fields = {k: v for k, v in cell.to_dict().items() if k not in without}
    return json.dumps(fields, sort_keys=True)
