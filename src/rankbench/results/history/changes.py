"""The line of each cell through the runs of a store, and the changes of its level."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np

from rankbench.results.compare.sides import CellLaunches, Side, find_differing
from rankbench.results.history.segments import (
    MIN_SERIES,
    Values,
    find_breaks,
    without_bad_runs,
)
from rankbench.results.numbers.statistics import Estimate, geometric_mean


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """A cell in one run."""

    run: Side
    cell: CellLaunches

    @property
    def time(self) -> str:
        """When the first of its launches began."""
        return min(self.cell.started)


@dataclass(frozen=True, slots=True)
class Line:
    """A cell of one definition through time.

    Attributes:
        id, hash: of the cell.
        points: runs in which it has a number, by time.
        values: logarithms of their throughput; a single bad run counts like its
            neighbours.
        breaks: places of the points that begin a new segment.
        ratios: of each of these segments to the one before, with the bracket that shows
            the change.
    """

    id: str
    hash: str
    points: Sequence[HistoryPoint]
    values: Values = field(compare=False)
    breaks: Sequence[int] = ()
    ratios: Sequence[Estimate] = ()

    @property
    def is_long(self) -> bool:
        """Whether changes are looked for."""
        return len(self.points) >= MIN_SERIES

    @property
    def unit(self) -> str:
        """What its throughput counts: samples or tokens."""
        return self.points[-1].cell.unit

    @property
    def segments(self) -> list[Sequence[HistoryPoint]]:
        """The points of equal level."""
        edges = [0, *self.breaks, len(self.points)]
        return [self.points[a:b] for a, b in itertools.pairwise(edges)]

    @property
    def levels(self) -> list[Estimate]:
        """The throughput of each segment: mean over its runs."""
        return [geometric_mean(np.exp(v)) for v in np.split(self.values, self.breaks)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The begin of a new segment of a line.

    Attributes:
        before, since: the last point of the old level, and the first of the new one.
        ratio: of the new level to the old one; its bracket excludes 1.
        runs: in the old and in the new segment.
        differs: facts that differ between `before` and `since`: their values.
        is_new: whether it is not found without the newest run of the store.
    """

    line: Line
    before: HistoryPoint
    since: HistoryPoint
    ratio: Estimate
    runs: tuple[int, int]
    differs: Mapping[str, tuple[Sequence[str], Sequence[str]]]
    is_new: bool

    @property
    def is_worse(self) -> bool:
        return self.ratio.value < 1

    @property
    def verdict(self) -> str:
        return "worse" if self.is_worse else "better"


@dataclass(frozen=True, slots=True)
class History:
    """What the runs of a store say.

    Attributes:
        runs: by time.
        lines: by cell id, then by time.
        changes: the latest first.
        searched: number of lines that are long enough to look for changes.
    """

    runs: Sequence[Side]
    lines: Sequence[Line]
    changes: Sequence[Change]
    searched: int

    @property
    def begins_worse(self) -> bool:
        """Whether the newest run shows that some cell has become slower."""
        return any(change.is_new and change.is_worse for change in self.changes)


def follow(runs: Sequence[Side]) -> History:
    """Find the lines of all cells, and when their level changed.

    Args:
        runs: by time, at least one.
    """
    lines = _find_lines(runs)
    # A change is news once, not every night that follows.
    known = {(line.id, line.hash): line for line in _find_lines(runs[:-1])}
    changes = [
        change
        for line in lines
        for change in _find_changes(line, known.get((line.id, line.hash)), runs[-1])
    ]
    changes.sort(key=lambda change: (change.since.time, change.line.id), reverse=True)
    return History(runs, lines, changes, sum(line.is_long for line in lines))


def _find_lines(runs: Sequence[Side]) -> list[Line]:
    """The line of each cell and definition.

    An attempt counts once. If several runs of the store have it, the one with most of
    its launches counts: it was added before it was complete, or beside cells that were
    measured again.
    """
    attempts: dict[tuple[str, str], dict[tuple[str, float], HistoryPoint]] = {}
    for run in runs:
        for name, cell in run.cells.items():
            if cell.throughput:
                own = attempts.setdefault((name, cell.hash), {})
                attempt = cell.started[0], cell.throughput[0]
                known = own.get(attempt)
                if known is None or len(known.cell.started) < len(cell.started):
                    own[attempt] = HistoryPoint(run, cell)
    lines = []
    for key, found in attempts.items():
        points = sorted(found.values(), key=lambda p: (p.time, p.run.name))
        logs = [math.log(median(point.cell.throughput)) for point in points]
        lines.append(Line(*key, points, without_bad_runs(logs)))
    lines.sort(key=lambda line: (line.id, line.points[0].time, line.hash))
    count = sum(line.is_long for line in lines)
    for place, line in enumerate(lines):
        if line.is_long:
            breaks, ratios = find_breaks(line.values, count)
            lines[place] = replace(line, breaks=breaks, ratios=ratios)
    return lines


def _find_changes(line: Line, known: Line | None, newest: Side) -> Iterator[Change]:
    """The changes of a line.

    Args:
        known: the same line without the newest run.
    """
    parts = line.segments
    for place, ratio in enumerate(line.ratios):
        old, new = parts[place : place + 2]
        # The newest run may shift where a change is found, within the segment before.
        begin = line.breaks[place - 1] if place else 0
        seen = known is not None and any(
            start > begin and (other.value < 1) == (ratio.value < 1)
            for start, other in zip(known.breaks, known.ratios, strict=True)
        )
        is_last = place == len(parts) - 2 and new[-1].run is newest
        yield Change(
            line=line,
            before=old[-1],
            since=new[0],
            ratio=ratio,
            runs=(len(old), len(new)),
            differs=find_differing(old[-1].cell.facts, new[0].cell.facts),
            is_new=is_last and not seen,
        )
