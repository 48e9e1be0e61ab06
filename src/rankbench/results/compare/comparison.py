"""Compare two or more sides, cell by cell.

Each side is compared with the first one, or, by date, with the run before it. Only
launches that took turns say whether one cell is better than another: a ratio across
runs is also that of two days, and across machines that of two machines. If a share is
asked for, a machine is judged, on whatever day: each row must keep that share.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rankbench.results.compare.sides import (
    CellLaunches,
    Differences,
    Side,
    find_differing,
)
from rankbench.results.numbers import statistics
from rankbench.results.numbers.statistics import (
    CONFIDENCE,
    MIN_LAUNCHES,
    Estimate,
    LogRatio,
)

FAIL, UNDECIDED, PASS = "FAIL", "UNDECIDED", "PASS"
WORSE, LOST, BETTER, EQUAL, UNTOLD = "worse", "lost", "better", "equal", "cannot tell"
OTHER_MACHINE, OTHER_SESSION = "another machine", "another session"
SAME, TOO_FEW, GAINED = "the same launches", "too few launches", "gained"
CHANGED, NO_NUMBER = "changed", "no number"

# Verdict -> its meaning, in the order of the output.
VERDICTS = {
    FAIL: "the bracket is below the share, or the row was tried and has no number",
    WORSE: "slower: the bracket is below 1",
    LOST: "has no number any more",
    UNDECIDED: "the bracket includes the share, or there is none",
    BETTER: "faster: the bracket is above 1",
    EQUAL: "the bracket includes 1, and is within the margin of equality",
    UNTOLD: "the bracket includes 1: these launches cannot tell",
    OTHER_MACHINE: "the ratio is that of two machines: it says nothing about code",
    OTHER_SESSION: "their launches took no turns, so the day may be the cause",
    PASS: "the bracket is above the share",
    SAME: "one is a copy of the other: nothing was compared",
    TOO_FEW: f"needs {MIN_LAUNCHES} launches or more on both sides",
    GAINED: "has a number for the first time",
    CHANGED: "defined otherwise: not compared",
    NO_NUMBER: "there is no number to compare with",
}

# Facts of hosts that make them another machine. Hosts of a cluster are alike.
OF_MACHINE = ("cpu", "cores", "memory (GiB)", "GPUs")

# Statuses of a row that was tried and gave no number.
_FAILED = ("crashed", "oom", "timeout", "mismatch")


@dataclass(frozen=True, slots=True)
class ComparedCell:
    """A cell of a side beside the same cell of its base.

    Attributes:
        id: of the cell.
        base, side: where it is compared; `side` may lack the cell if a share is asked.
        verdict: one of `VERDICTS`.
        why: what is missing for a verdict; empty if nothing is.
        took_turns: whether launches of the same rounds were compared.
        ratio: its throughput over that of the base, with a bracket; None unless both
            have a number.
    """

    id: str
    base: Side
    side: Side
    verdict: str
    why: str
    took_turns: bool
    ratio: Estimate | None = None

    @property
    def old(self) -> CellLaunches:
        return self.base.cells[self.id]

    @property
    def new(self) -> CellLaunches | None:
        return self.side.cells.get(self.id)

    @property
    def differs(self) -> Differences:
        """Facts of hosts, software, image and code that differ."""
        return find_differing(self.old.facts, self.new.facts) if self.new else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two or more sides, compared.

    Attributes:
        cells: of each side but the first, in the order of the sides.
        confidence: that all brackets hold at once; by date, all of one run.
        margin: of equality: a bracket that includes 1 is within 1 +- this share.
        at_least: the ratio that every row must reach; None if none is asked.
        by_date: whether each run is compared with the one before it.
    """

    sides: Sequence[Side]
    cells: Sequence[ComparedCell]
    confidence: float
    margin: float
    at_least: float | None
    by_date: bool

    @property
    def verdict(self) -> str:
        """Of all cells, by date of those of the newest run: one that fails suffices."""
        news = [cell for cell in self.cells if cell.side is self.sides[-1]]
        found = {cell.verdict for cell in (news if self.by_date else self.cells)}
        if found & {FAIL, WORSE, LOST}:
            return FAIL
        if self.at_least is None:
            return PASS if found & {BETTER, EQUAL, UNTOLD} else UNDECIDED
        return PASS if found - {NO_NUMBER} == {PASS} else UNDECIDED


def compare(
    sides: Sequence[Side],
    *,
    at_least: float | None = None,
    by_date: bool = False,
    confidence: float = CONFIDENCE,
    margin: float = statistics.MARGIN,
) -> Comparison:
    """Compare the throughput of cells that sides have in common.

    Args:
        sides: two or more.
        at_least: judge each row of the base that has a number: it passes if the bracket
            of its ratio is above this share, and fails if it is below.
        by_date: compare each run with the one before it that has a number for a cell.
        confidence: that all brackets hold at once.
        margin: of equality: a bracket that includes 1 is within 1 +- this share.

    Raises:
        ValueError: an argument makes no sense, or no cell can be compared.
    """
    if at_least is not None and not 0 < at_least <= 2:
        raise ValueError(f"--at-least {at_least}: expected a ratio such as 0.95")
    if not 0.5 <= confidence < 1:
        raise ValueError(f"confidence {confidence}: give at least 0.5 and less than 1")
    if not 0 <= margin < 1:
        raise ValueError(f"margin {margin}: give at least 0 and less than 1")
    for place, side in enumerate(sides):
        if side.name in [other.name for other in sides[:place]]:
            raise ValueError(f"{side.name} is named twice: its launches are the same")
        if by_date and not side.begun:
            raise ValueError(f"{side.name} does not say when it was measured")
    if by_date:
        sides = sorted(sides, key=lambda side: side.begun)
    groups = []
    for place, side in enumerate(sides[1:]):
        before = sides[place::-1] if by_date else sides[:1]
        groups.append([*_pair_up(side, before, of_base=at_least is not None)])
    if not by_date:
        groups = [[pair for group in groups for pair in group]]
    cells = []
    # By date, brackets of each run hold together: a long history costs no power.
    for group in groups:
        judged = sum(not cell.verdict for cell, _ in group)
        each = statistics.confidence_of_each(judged, confidence)
        cells += [
            _judge(cell, ratio, each, margin)
            if at_least is None
            else _judge_share(cell, ratio, each, at_least)
            for cell, ratio in group
        ]
    return Comparison(
        sides=sides,
        cells=cells,
        confidence=confidence,
        margin=margin,
        at_least=at_least,
        by_date=by_date,
    )


def _pair_up(
    side: Side, before: Sequence[Side], *, of_base: bool
) -> Iterator[tuple[ComparedCell, LogRatio | None]]:
    """The cells of a side with their ratios; a verdict if no bracket is needed for it.

    Args:
        before: what it may be compared with; the first that has a number counts.
        of_base: whether cells of the base count that the side lacks.
    """
    names = dict.fromkeys([*side.cells, *(before[0].cells if of_base else ())])
    bases = {name: [one for one in before if name in one.cells] for name in names}
    if not any(bases[name] for name in side.cells):
        raise ValueError(
            f"{before[0].name} and {side.name} have no cell in common: do they "
            "belong to the same experiment?"
        )
    if of_base and not any(cell.throughput for cell in before[0].cells.values()):
        raise ValueError(f"{before[0].name}: no row has a throughput")
    for name, having in bases.items():
        if having:
            measured = (one for one in having if one.cells[name].throughput)
            base = next(measured, having[0])
            old, new = base.cells[name], side.cells.get(name)
            verdict, why = _find_obstacle(old, new, side.name)
            ratio, took_turns = None, False
            if new and verdict in ("", TOO_FEW):
                ratio, took_turns = _find_ratio(old, new)
            yield ComparedCell(name, base, side, verdict, why, took_turns), ratio


def _find_obstacle(
    old: CellLaunches, new: CellLaunches | None, name: str
) -> tuple[str, str]:
    """What keeps a cell from being judged, as a verdict and in words; or empty ones."""
    if new is None:
        return LOST, f"not in {name}"
    if old.hash and new.hash and old.hash != new.hash:
        return CHANGED, "defined otherwise"
    if not old.throughput:
        return GAINED if new.throughput else NO_NUMBER, f"the base: {old.status}"
    if not new.throughput:
        return LOST, f"{new.status}: {new.reason}" if new.reason else new.status
    if old.unit != new.unit:
        return CHANGED, f"{new.unit}/s; the base has {old.unit}/s"
    if old.identities & new.identities:
        return SAME, "both sides have the same launches"
    alone = old if not old.is_published else new
    if (few := min(len(new.throughput), len(alone.throughput))) < MIN_LAUNCHES:
        return TOO_FEW, f"{few} launches; {MIN_LAUNCHES} are needed"
    return "", ""


def _find_ratio(old: CellLaunches, new: CellLaunches) -> tuple[LogRatio, bool]:
    """The ratio of two cells, and whether their launches took turns."""
    if not old.is_published:
        sides = {"old": old.by_round, "new": new.by_round}
        found = statistics.Fit(sides).ratio("new", "old")
        rates = new.throughput, old.throughput
        return found or statistics.ratio_of_samples(*rates), found is not None
    logs, error = np.log(new.throughput) - math.log(old.throughput[0]), math.inf
    if len(logs) >= MIN_LAUNCHES:
        error = float(logs.std(ddof=1)) / math.sqrt(len(logs))
    freedom = max(1, len(logs) - 1)
    value = float(logs.mean())
    return LogRatio(value, error, freedom, len(logs), own=error**2), False


def _judge(
    cell: ComparedCell,
    found: LogRatio | None,
    confidence: float,
    margin: float,
) -> ComparedCell:
    """The cell with the verdict on its code, if its launches took turns."""
    ratio = found.bracket(confidence) if found else None
    verdict = cell.verdict
    if ratio and not verdict:
        verdict = BETTER if ratio.value > 1 else WORSE
        if ratio.interval is None:
            verdict = TOO_FEW
        elif cell.differs.keys() & {*OF_MACHINE}:
            verdict = OTHER_MACHINE
        elif not cell.took_turns:
            verdict = OTHER_SESSION
        elif told := statistics.judge(ratio, margin):
            verdict = EQUAL if told == statistics.EQUAL else UNTOLD
    return replace(cell, verdict=verdict, ratio=ratio)


def _judge_share(
    cell: ComparedCell,
    found: LogRatio | None,
    confidence: float,
    at_least: float,
) -> ComparedCell:
    """The cell with the verdict on the machine: whether it keeps a share."""
    ratio = found.bracket(confidence) if found else None
    verdict, why = UNDECIDED, cell.why
    ends = ratio.printed()[0].interval if ratio else None
    if not cell.old.throughput:
        verdict = NO_NUMBER
    elif cell.verdict:
        if cell.new and cell.new.status in _FAILED:
            verdict = FAIL
    elif found and cell.new and ends:
        if ends[0] > at_least:
            verdict = PASS
        elif ends[1] < at_least:
            verdict = FAIL
        else:
            distance = abs(found.value - math.log(at_least))
            alone = len(cell.new.throughput)
            more = found.launches_for(distance, confidence, alone=alone)
            about = f"about {more}" if more else f"not even {statistics.MOST_LAUNCHES}"
            why = f"{about} launches would decide"
    elif found:
        why = f"{found.launches} launches count; {MIN_LAUNCHES} are needed"
    return replace(cell, verdict=verdict, ratio=ratio, why=why)
