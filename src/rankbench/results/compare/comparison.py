"""Compare two sides, cell by cell: the one comparison of three commands.

`compare` asks which cells of NEW became better, worse, or stayed equal. `accept` asks
whether NEW keeps a share of what OLD, a reference, promises; `rankbench replay` asks
the same of a bundle and its rerun.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rankbench.results.compare.sides import CellLaunches, Side, find_differing
from rankbench.results.numbers import fit
from rankbench.results.numbers.fit import (
    MARGIN,
    Fit,
    LogRatio,
    confidence_of_each,
    find_drifting,
    ratio_of_samples,
)
from rankbench.results.numbers.statistics import (
    CONFIDENCE,
    MIN_LAUNCHES,
    Estimate,
)

BETTER, WORSE, EQUAL, UNTOLD = "better", "worse", "equal", "cannot tell"
TOO_FEW, LOST, GAINED, CHANGED = "too few launches", "lost", "gained", "changed"
NO_NUMBER = "no number"

# Verdict of `compare` -> its meaning, in the order of the output.
VERDICTS = {
    WORSE: "slower: the bracket is below 1",
    LOST: "had a number in OLD, has none in NEW",
    BETTER: "faster: the bracket is above 1",
    EQUAL: "the bracket is within the margin of equality",
    UNTOLD: "the bracket includes 1: these launches cannot tell",
    TOO_FEW: f"needs {MIN_LAUNCHES} launches or more on both sides",
    GAINED: "has a number in NEW only",
    CHANGED: "defined otherwise in OLD and NEW: not compared",
    NO_NUMBER: "has a number on neither side",
}

# Verdicts of `accept`, in the order of the output.
FAIL, UNDECIDED, PASS = "FAIL", "UNDECIDED", "PASS"

# Statuses of a row that was tried and gave no number.
_FAILED = ("crashed", "oom", "timeout", "mismatch")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedCell:
    """A cell of OLD beside the same cell of NEW.

    Attributes:
        id: of the cell.
        verdict: one of `VERDICTS`; by `accept`, `PASS`, `FAIL`, `UNDECIDED` or, if OLD
            has no number, `NO_NUMBER`.
        new: None if NEW does not have it, as only `accept` allows.
        ratio: NEW's throughput over OLD's, with the bracket that is the verdict; None
            unless both have a number.
        paired: whether launches of the same rounds were compared.
        why: what is missing for a verdict; empty if nothing is.
        launches: by `accept`, launches of NEW that would probably decide; None if it is
            decided, or if no number of launches would.
    """

    id: str
    verdict: str
    old: CellLaunches
    new: CellLaunches | None
    ratio: Estimate | None = None
    paired: bool = False
    why: str = ""
    launches: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """NEW against OLD.

    Attributes:
        confidence: that all brackets hold at once.
        margin: a cell is equal if its bracket is within 1 +- this share.
        at_least: the ratio that `accept` asks of every cell.
        cells: by `compare`, those of both sides, as in NEW; by `accept`, all of OLD.
    """

    old: Side
    new: Side
    confidence: float
    margin: float = MARGIN
    at_least: float = 0.0
    cells: Sequence[ComparedCell]

    def having(self, verdict: str) -> list[ComparedCell]:
        return [cell for cell in self.cells if cell.verdict == verdict]

    @property
    def is_worse(self) -> bool:
        return bool(self.having(WORSE) or self.having(LOST))

    @property
    def verdict(self) -> str:
        """Of `accept` on the machine: one row that fails is enough to fail."""
        verdicts = {cell.verdict for cell in self.cells} - {NO_NUMBER}
        if FAIL in verdicts:
            return FAIL
        return PASS if verdicts == {PASS} else UNDECIDED

    @property
    def paired(self) -> bool:
        """Whether all launches that were compared took turns."""
        pairs = [cell.paired for cell in self.cells if cell.ratio]
        return bool(pairs) and all(pairs)

    @property
    def order(self) -> str | None:
        """Which side was measured first; None if they overlap or it is not known."""
        if not self.old.begun or not self.new.begun:
            return None
        if self.old.ended <= self.new.begun:
            return "OLD before NEW"
        return "NEW before OLD" if self.new.ended <= self.old.begun else None

    @property
    def facts(self) -> Mapping[str, tuple[Sequence[str], Sequence[str]]]:
        """What differs between the sides: key -> values in OLD, and in NEW."""
        return find_differing(self.old.facts, self.new.facts)

    @property
    def only_old(self) -> list[str]:
        """Ids of cells that OLD has alone."""
        return [name for name in self.old.cells if name not in self.new.cells]

    @property
    def only_new(self) -> list[str]:
        return [name for name in self.new.cells if name not in self.old.cells]

    @property
    def drifting(self) -> list[str]:
        """Cells whose launches became steadily faster or slower in OLD or in NEW.

        The machine changed meanwhile, perhaps between OLD and NEW as well.
        """
        sides = {
            f"{cell.id} {place}": side.throughput
            for cell in self.cells
            for place, side in (("old", cell.old), ("new", cell.new))
            if side
        }
        names = [name.partition(" ")[0] for name in find_drifting(sides)]
        return list(dict.fromkeys(names))


def compare(
    old: Side, new: Side, *, confidence: float = CONFIDENCE, margin: float = MARGIN
) -> Comparison:
    """Compare the throughput of each cell that both sides have.

    Args:
        confidence: that all brackets hold at once.
        margin: a cell is equal if its bracket is within 1 +- this share.

    Raises:
        ValueError: confidence or margin make no sense, or no cell is in both.
    """
    _check_confidence(confidence)
    if not 0 <= margin < 1:
        raise ValueError(f"margin {margin}: give at least 0 and less than 1")
    _check_common(old, new, old.cells)
    shared = [name for name in new.cells if name in old.cells]
    cells = [
        replace(cell, verdict=cell.verdict or _judge(cell.ratio, margin))
        for cell, _ in _pair_up(old, new, shared, confidence)[1]
    ]
    return Comparison(
        old=old, new=new, confidence=confidence, margin=margin, cells=cells
    )


def _judge(ratio: Estimate | None, margin: float) -> str:
    """The verdict of `compare` on a cell that can be judged."""
    if ratio is None or ratio.interval is None:
        return TOO_FEW
    if fit.is_within(ratio, margin):
        return EQUAL
    if fit.judge(ratio):
        return UNTOLD
    return BETTER if ratio.value > 1 else WORSE


def _pair_up(
    old: Side, new: Side, names: Sequence[str], confidence: float
) -> tuple[float, list[tuple[ComparedCell, LogRatio | None]]]:
    """Pair the cells with these names.

    Returns:
        The confidence of each bracket; cells with their ratios. The verdict is empty if
        the ratio decides it.
    """
    pairs = {name: (old.cells[name], new.cells.get(name)) for name in names}
    obstacles = {name: _find_obstacle(*pair) for name, pair in pairs.items()}
    judged = sum(not verdict for verdict, _ in obstacles.values())
    each, found = confidence_of_each(judged, confidence), []
    for name, (before, after) in pairs.items():
        verdict, why = obstacles[name]
        ratio, paired = None, False
        if after and verdict in ("", TOO_FEW):
            ratio, paired = _find_ratio(before, after)
        cell = ComparedCell(
            id=name,
            verdict=verdict,
            old=before,
            new=after,
            ratio=ratio.bracket(each) if ratio else None,
            paired=paired,
            why=why,
        )
        found.append((cell, ratio))
    return each, found


def accept(
    old: Side, new: Side, *, at_least: float, confidence: float = CONFIDENCE
) -> Comparison:
    """Judge each row of OLD, a reference, that has a number.

    A row passes if the bracket of its ratio is above `at_least`, and fails if it is
    below.

    Args:
        at_least: 0.95 allows a loss of 5 %.
        confidence: that all brackets hold at once.

    Raises:
        ValueError: an argument makes no sense, or no row can be compared.
    """
    if not 0 < at_least <= 2:
        raise ValueError(f"--at-least {at_least}: expected a ratio such as 0.95")
    _check_confidence(confidence)
    wanted = [name for name, cell in old.cells.items() if cell.throughput]
    if not wanted:
        raise ValueError(f"{old.name}: no row has a throughput")
    _check_common(old, new, wanted)
    cells = []
    each, pairs = _pair_up(old, new, list(old.cells), confidence)
    for cell, found in pairs:
        verdict, why, launches = UNDECIDED, cell.why, None
        interval = cell.ratio and cell.ratio.interval
        if not cell.old.throughput:
            verdict, why = NO_NUMBER, f"no number in the baseline: {cell.old.status}"
        elif cell.verdict:
            if cell.new and cell.new.status in _FAILED:
                verdict = FAIL
            if cell.new and 0 < len(cell.new.throughput) < MIN_LAUNCHES:
                launches = MIN_LAUNCHES
        elif found and cell.new and interval:
            if interval[0] > at_least:
                verdict = PASS
            elif interval[1] < at_least:
                verdict = FAIL
            else:
                distance = abs(found.value - math.log(at_least))
                alone = len(cell.new.throughput)
                launches = found.launches_for(distance, each, alone=alone)
        cells.append(replace(cell, verdict=verdict, why=why, launches=launches))
    return Comparison(
        old=old, new=new, confidence=confidence, at_least=at_least, cells=cells
    )


def _check_confidence(confidence: float) -> None:
    if not 0.5 <= confidence < 1:
        raise ValueError(f"confidence {confidence}: give at least 0.5 and less than 1")


def _check_common(old: Side, new: Side, names: Iterable[str]) -> None:
    if set(names).isdisjoint(new.cells):
        raise ValueError(
            f"{old.name} and {new.name} have no cell in common: do they "
            "belong to the same experiment?"
        )


def _find_obstacle(old: CellLaunches, new: CellLaunches | None) -> tuple[str, str]:
    """What keeps a cell from being judged, as a verdict and in words; or empty ones."""
    if new is None:
        return LOST, "not in RESULTS"
    if old.hash and old.hash != new.hash:
        return CHANGED, "defined otherwise in the baseline"
    if not old.throughput:
        return GAINED if new.throughput else NO_NUMBER, ""
    if not new.throughput:
        return LOST, f"{new.status}: {new.reason}"
    if old.unit != new.unit:
        return CHANGED, f"the baseline has {old.unit}/s, RESULTS have {new.unit}/s"
    counts = [len(new.throughput)] + ([] if old.is_fixed else [len(old.throughput)])
    if min(counts) < MIN_LAUNCHES:
        return TOO_FEW, f"{min(counts)} launches; {MIN_LAUNCHES} are needed"
    return "", ""


def _find_ratio(old: CellLaunches, new: CellLaunches) -> tuple[LogRatio, bool]:
    """The ratio of two cells, and whether launches of the same rounds tell it."""
    if not old.is_fixed:
        found = Fit({"old": old.by_round, "new": new.by_round}).ratio("new", "old")
        return found or ratio_of_samples(new.throughput, old.throughput), bool(found)
    logs = np.log(new.throughput) - math.log(old.throughput[0])
    count = len(logs)
    if count < MIN_LAUNCHES:
        return LogRatio(float(logs.mean()), math.inf, 1, count), False
    variance = float(logs.var(ddof=1)) / count
    error = math.sqrt(variance)
    return LogRatio(float(logs.mean()), error, count - 1, count, own=variance), False
