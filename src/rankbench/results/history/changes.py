"""The line of each cell through the runs of a store, and the changes of its level."""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rankbench.results.compare.sides import CellLaunches, Side, find_differing
from rankbench.results.history.segments import (
    MIN_SERIES,
    chance_of_change,
    find_breaks,
)
from rankbench.results.numbers.fit import ratio_of_samples
from rankbench.results.numbers.statistics import Estimate, adjust, geometric_mean

LEVEL = 0.05
# Among n cells the smallest p-value must be below LEVEL / n, with room to spare.
_FEWEST, _FOR_EACH = 999, 80


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
        p_value: of any change at all; None if there are too few runs.
        adjusted: the same, corrected for the number of cells.
        breaks: places of the points that begin a new segment.
    """

    id: str
    hash: str
    points: Sequence[HistoryPoint]
    p_value: float | None = None
    adjusted: float | None = None
    breaks: Sequence[int] = ()

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
        return [geometric_mean([p.cell.center for p in part]) for part in self.segments]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The begin of a new segment of a line.

    Attributes:
        before, since: the last point of the old level, and the first of the new one.
        ratio: of the new level to the old one, with an interval over whole runs.
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
        level: of the corrected tests.
    """

    runs: Sequence[Side]
    lines: Sequence[Line]
    changes: Sequence[Change]
    level: float

    @property
    def begins_worse(self) -> bool:
        """Whether the newest run shows that some cell has become slower."""
        return any(change.is_new and change.is_worse for change in self.changes)

    @property
    def tested(self) -> int:
        return sum(line.p_value is not None for line in self.lines)


def follow(runs: Sequence[Side], *, level: float = LEVEL) -> History:
    """Find the lines of all cells, and when their level changed.

    The p-values of the cells are corrected by Benjamini and Hochberg (1995), as in
    `rankbench compare`: an upgrade changes many cells at once, of which Holm's
    correction would miss more. If nothing has changed at all, a change is found in at
    most the share `level` of stores, as with Holm's.

    Args:
        runs: by time, at least one.
        level: of the corrected tests.
    """
    lines = _test(_join(runs), level)
    # A change is news once, not every night that follows.
    last = [line for line in lines if line.breaks and line.points[-1].run is runs[-1]]
    old = {}
    if last:
        shorter = [
            replace(
                line,
                points=[p for p in line.points if p.run is not runs[-1]],
                p_value=None,
                adjusted=None,
                breaks=(),
            )
            for line in lines
        ]
        old = {(line.id, line.hash): _turns(line) for line in _test(shorter, level)}
    changes: list[Change] = []
    for line in lines:
        known = old.get((line.id, line.hash), ())
        changes += _find_changes(line, known, is_last=line in last)
    changes.sort(key=lambda one: (one.since.time, one.line.id), reverse=True)
    return History(runs, lines, changes, level)


def _join(runs: Sequence[Side]) -> list[Line]:
    """The line of each cell and definition.

    An attempt counts once. If several runs of the store have it, the one with most of
    its launches counts: it was added before it was complete, or beside cells that were
    measured again.
    """
    lines: dict[tuple[str, str], dict[tuple[str, float], HistoryPoint]] = {}
    for run in runs:
        for name, cell in run.cells.items():
            if cell.throughput:
                attempts = lines.setdefault((name, cell.hash), {})
                attempt = cell.started[0], cell.throughput[0]
                known = attempts.get(attempt)
                if known is None or len(known.cell.started) < len(cell.started):
                    attempts[attempt] = HistoryPoint(run, cell)
    found = [
        Line(*key, sorted(points.values(), key=lambda p: (p.time, p.run.name)))
        for key, points in lines.items()
    ]
    return sorted(found, key=lambda line: (line.id, line.points[0].time, line.hash))


def _test(lines: Sequence[Line], level: float) -> list[Line]:
    """The lines with their p-values and breaks."""
    long = [line for line in lines if len(line.points) >= MIN_SERIES]
    draws = max(_FEWEST, _FOR_EACH * len(long) - 1)
    # The same seed for the same cell, so that the same store gives the same answer.
    series = [
        (
            [math.log(point.cell.center) for point in line.points],
            zlib.crc32(f"{line.id} {line.hash}".encode()),
        )
        for line in long
    ]
    chances = [
        chance_of_change(values, seed=seed, permutations=draws)
        for values, seed in series
    ]
    adjusted = adjust(chances)
    # A further change of a line is judged as strictly as the first one.
    passed = [p for p, q in zip(chances, adjusted, strict=True) if q <= level]
    further = level * len(passed) / max(1, len(long))
    tested = {}
    for line, (values, seed), chance, corrected in zip(
        long, series, chances, adjusted, strict=True
    ):
        breaks: Sequence[int] = ()
        if corrected <= level:
            breaks = find_breaks(values, level=further, seed=seed, permutations=draws)
        tested[line.id, line.hash] = replace(
            line, p_value=chance, adjusted=corrected, breaks=breaks
        )
    return [tested.get((line.id, line.hash), line) for line in lines]


def _turns(line: Line) -> list[tuple[int, bool]]:
    """Each break of a line, and whether it became worse there."""
    levels = [level.value for level in line.levels]
    worse = [new < old for old, new in itertools.pairwise(levels)]
    return list(zip(line.breaks, worse, strict=True))


def _find_changes(
    line: Line, known: Sequence[tuple[int, bool]], *, is_last: bool
) -> Iterator[Change]:
    """The changes of a line.

    Args:
        known: breaks that are found without the newest run, and whether for the worse.
        is_last: whether the newest run has this cell.
    """
    parts = line.segments
    for place, (old, new) in enumerate(itertools.pairwise(parts)):
        before, since = old[-1], new[0]
        is_end = place == len(parts) - 2
        # The newest run may shift where a change is found, within the segment before.
        begin = line.breaks[place - 1] if place else 0
        ratio = ratio_of_samples(
            [p.cell.center for p in new], [p.cell.center for p in old]
        )
        turn = ratio.value < 1
        yield Change(
            line=line,
            before=before,
            since=since,
            ratio=ratio,
            runs=(len(old), len(new)),
            differs=find_differing(before.cell.facts, since.cell.facts),
            is_new=is_last
            and is_end
            and not any(one > begin and turn == worse for one, worse in known),
        )
