"""Compare two sides, cell by cell: the one comparison of three commands.

`compare` asks which cells of NEW became better, worse, or stayed equal. `accept` asks
whether NEW keeps a share of what OLD, a reference, promises; `rankbench replay` asks
the same of a bundle and its rerun.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from rankbench.results.compare.sides import CellLaunches, Side, find_differing
from rankbench.results.numbers.difference import (
    Difference,
    adjust,
    can_be_found,
    differ,
    holm,
    mann_whitney,
    trend,
)
from rankbench.results.numbers.fit import MARGIN, ratio_of_samples
from rankbench.results.numbers.ratios import (
    chance_of_few,
    differ_by_round,
    find_pairs,
)
from rankbench.results.numbers.statistics import (
    CONFIDENCE,
    MIN_LAUNCHES,
    Estimate,
    median,
)

BETTER, WORSE, EQUAL, UNTOLD = "better", "worse", "equal", "cannot tell"
TOO_FEW, LOST, GAINED, CHANGED = "too few launches", "lost", "gained", "changed"
NO_NUMBER = "no number"

# Verdict of `compare` -> its meaning, in the order of the output.
VERDICTS = {
    WORSE: "slower, beyond chance and margin",
    LOST: "had a number in OLD, has none in NEW",
    BETTER: "faster, beyond chance and margin",
    EQUAL: "within the margin of equality, beyond chance",
    UNTOLD: "these launches cannot tell",
    TOO_FEW: f"needs {MIN_LAUNCHES} launches or more on both sides",
    GAINED: "has a number in NEW only",
    CHANGED: "defined otherwise in OLD and NEW: not compared",
    NO_NUMBER: "has a number on neither side",
}

# Verdicts of `accept`, in the order of the output.
FAIL, UNDECIDED, PASS = "FAIL", "UNDECIDED", "PASS"

# More launches are planned so that they decide a row with this probability.
_POWER = 0.8

MOST_LAUNCHES = 1000

# Statuses of a row that was tried and gave no number.
_FAILED = ("crashed", "oom", "timeout", "mismatch")

# Standard error of what a test rests on, over that of a mean, for normal values: of the
# test of Mann and Whitney, and of the sign test.
_PAIRS, _SIGNS = math.sqrt(math.pi / 3), math.sqrt(math.pi / 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedCell:
    """A cell of OLD beside the same cell of NEW.

    Attributes:
        id: of the cell.
        verdict: one of `VERDICTS`; by `accept`, `PASS`, `FAIL`, `UNDECIDED` or, if OLD
            has no number, `NO_NUMBER`.
        new: None if NEW does not have it, as only `accept` allows.
        ratio: NEW's throughput over OLD's; None unless both have a number.
        difference: what the tests of `compare` say; None unless both have a number.
        adjusted: its p-value, corrected for the number of cells; None without one.
        paired: whether launches of the same rounds were compared.
        why: by `accept`, what is missing for a test; else empty.
        launches: by `accept`, launches of NEW that would probably decide; None if it is
            decided, or if no number of launches would.
    """

    id: str
    verdict: str
    old: CellLaunches
    new: CellLaunches | None
    ratio: Estimate | None = None
    difference: Difference | None = None
    adjusted: float | None = None
    paired: bool = False
    why: str = ""
    launches: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """NEW against OLD.

    Attributes:
        confidence: of the verdicts, over all cells.
        margin: relative differences that `compare` calls neither better nor worse.
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
    def within(self) -> float:
        """Relative differences that count as equal."""
        return max(self.margin, MARGIN)

    @property
    def paired(self) -> bool:
        """Whether all launches that were compared took turns."""
        pairs = [cell.paired for cell in self.cells if cell.difference]
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
    def tested(self) -> list[ComparedCell]:
        return [cell for cell in self.cells if cell.adjusted is not None]

    @property
    def blind(self) -> list[str]:
        """Cells with too few launches to find a change of one cell alone."""
        counts = {
            cell.id: (len(cell.old.throughput), len(cell.new.throughput))
            for cell in self.tested
            if cell.new
        }
        return [
            name
            for name, count in counts.items()
            if not can_be_found(*count, level=1 - self.confidence, cells=len(counts))
        ]

    @property
    def drifting(self) -> list[str]:
        """Cells whose launches became steadily faster or slower in OLD or in NEW.

        The machine changed meanwhile, perhaps between OLD and NEW as well.
        """
        chances = {
            (cell.id, place): trend(side.throughput)
            for cell in self.cells
            for place, side in enumerate((cell.old, cell.new))
            if side
        }
        level = 1 - self.confidence
        names = [name for (name, _), p in _adjust(chances).items() if p <= level]
        return list(dict.fromkeys(names))


def compare(
    old: Side, new: Side, *, confidence: float = CONFIDENCE, margin: float = MARGIN
) -> Comparison:
    """Compare the throughput of each cell that both sides have.

    Args:
        confidence: of the verdicts, over all cells, and of each cell's interval.
        margin: relative differences up to this one are not called worse or better.

    Raises:
        ValueError: confidence or margin make no sense, or no cell is in both.
    """
    _check_confidence(confidence)
    if not 0 <= margin < 1:
        raise ValueError(f"margin {margin}: give at least 0 and less than 1")
    _check_common(old, new, old.cells)
    shared = {
        name: (old.cells[name], cell)
        for name, cell in new.cells.items()
        if name in old.cells
    }
    within = max(margin, MARGIN)
    differences: dict[str, Difference] = {}
    paired = set()
    for name, (before, after) in shared.items():
        if before.hash != after.hash or not before.throughput or not after.throughput:
            continue
        above, below = after.by_round, before.by_round
        options = {"confidence": confidence, "margin": margin, "within": within}
        if rounds := find_pairs(above, below):
            paired.add(name)
            differences[name] = differ_by_round(above, below, rounds, **options)
        else:
            differences[name] = differ(after.throughput, before.throughput, **options)
    adjusted = _adjust({name: d.p_value for name, d in differences.items()})
    equal = _adjust({name: d.equal for name, d in differences.items()})
    level = 1 - confidence

    def judge(name: str, before: CellLaunches, after: CellLaunches) -> str:
        if before.hash != after.hash:
            return CHANGED
        if name not in differences:
            if before.throughput:
                return LOST
            return GAINED if after.throughput else NO_NUMBER
        if name not in adjusted:
            return TOO_FEW
        if adjusted[name] > level:
            return EQUAL if equal.get(name, 1.0) <= level else UNTOLD
        return BETTER if differences[name].superiority > 0.5 else WORSE

    cells = []
    for name, sides in shared.items():
        difference = differences.get(name)
        cells.append(
            ComparedCell(
                id=name,
                verdict=judge(name, *sides),
                old=sides[0],
                new=sides[1],
                ratio=difference.ratio if difference else None,
                difference=difference,
                adjusted=adjusted.get(name),
                paired=name in paired,
            )
        )
    return Comparison(
        old=old, new=new, confidence=confidence, margin=margin, cells=cells
    )


def accept(
    old: Side, new: Side, *, at_least: float, confidence: float = CONFIDENCE
) -> Comparison:
    """Judge each row of OLD, a reference, that has a number.

    A row passes if a one-sided test says that its throughput is above `at_least` times
    that of the reference, and fails if one says that it is below: the test of Mann and
    Whitney, or the sign test if the reference is one published number. The level is
    corrected for the number of rows (Holm, Scandinavian Journal of Statistics 6, 1979).

    Args:
        at_least: 0.95 allows a loss of 5 %.
        confidence: that no verdict is wrong, over all rows.

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
    missing = {
        name: _find_missing(cell, new.cells.get(name))
        for name, cell in old.cells.items()
    }
    # Probabilities of these launches if the row were not above, and not below.
    chances = {
        name: _test_line(old.cells[name], new.cells[name].throughput, at_least)
        for name, why in missing.items()
        if why is None
    }
    adjusted = dict(zip(chances, holm(list(map(min, chances.values()))), strict=True))
    level = 1 - confidence

    def judge(name: str) -> tuple[str, int | None]:
        """The verdict, and how many launches would decide."""
        before, after = old.cells[name], new.cells.get(name)
        if not before.throughput:
            return NO_NUMBER, None
        if name not in chances:
            has_failed = after is not None and after.status in _FAILED
            few = after and 0 < len(after.throughput) < MIN_LAUNCHES
            return FAIL if has_failed else UNDECIDED, MIN_LAUNCHES if few else None
        if adjusted[name] <= level:
            return PASS if chances[name][0] < chances[name][1] else FAIL, None
        assert after is not None
        return UNDECIDED, _plan_launches(before, after, at_least, level / len(chances))

    cells = []
    for name, cell in old.cells.items():
        verdict, launches = judge(name)
        after = new.cells.get(name)
        cells.append(
            ComparedCell(
                id=name,
                verdict=verdict,
                old=cell,
                new=after,
                ratio=_find_ratio(cell, after),
                why=missing[name] or "",
                launches=launches,
            )
        )
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


def _adjust(chances: Mapping[Any, float | None]) -> dict[Any, float]:
    """P-values, corrected for the number of those that there are."""
    known = {key: chance for key, chance in chances.items() if chance is not None}
    return dict(zip(known, adjust(list(known.values())), strict=True))


def _find_missing(old: CellLaunches, new: CellLaunches | None) -> str | None:
    """Why a row cannot be tested."""
    if not old.throughput:
        return f"no number in the baseline: {old.status}"
    if new is None:
        return "not in RESULTS"
    if old.hash and old.hash != new.hash:
        return "defined otherwise in the baseline"
    if not new.throughput:
        return f"{new.status}: {new.reason}"
    if old.unit != new.unit:
        return f"the baseline has {old.unit}/s, RESULTS have {new.unit}/s"
    counts = [len(new.throughput)] + ([] if old.is_fixed else [len(old.throughput)])
    if min(counts) < MIN_LAUNCHES:
        return f"{min(counts)} launches; {MIN_LAUNCHES} are needed"
    return None


def _test_line(
    old: CellLaunches, rates: Sequence[float], at_least: float
) -> tuple[float, float]:
    if old.is_fixed:
        line = at_least * old.throughput[0]
        return chance_of_few(rates, below=line), chance_of_few(rates, above=line)
    lines = [at_least * value for value in old.throughput]
    return (
        mann_whitney(rates, lines, side="greater"),
        mann_whitney(rates, lines, side="less"),
    )


def _find_ratio(old: CellLaunches, new: CellLaunches | None) -> Estimate | None:
    if not old.throughput or new is None or not new.throughput:
        return None
    if old.is_fixed:
        return median([value / old.throughput[0] for value in new.throughput])
    return ratio_of_samples(new.throughput, old.throughput)


def _plan_launches(
    old: CellLaunches, new: CellLaunches, at_least: float, level: float
) -> int | None:
    """Launches of NEW that decide; those of OLD are what they are.

    A plan, not a test: launches count as normal, on the scale of logarithms.
    """
    ratio = _find_ratio(old, new)
    assert ratio is not None
    distance = abs(math.log(ratio.value / at_least))
    reach = NormalDist().inv_cdf(1 - level) + NormalDist().inv_cdf(_POWER)
    loss = _SIGNS if old.is_fixed else _PAIRS
    allowed = (distance / (reach * loss)) ** 2
    if not old.is_fixed:
        allowed -= _variance(old) / len(old.throughput)
    scatter = _variance(new)
    if allowed * MOST_LAUNCHES <= scatter:
        return None
    # Without scatter, one more launch is as good as many.
    needed = math.ceil(scatter / allowed) if scatter else 0
    return max(len(new.throughput) + 1, needed)


def _variance(cell: CellLaunches) -> float:
    """Of the logarithms, from the mean absolute deviation."""
    logs = np.log(cell.throughput)
    deviation = float(np.mean(np.abs(logs - np.median(logs))))
    few = len(logs) / (len(logs) - 1)
    return math.pi / 2 * few * deviation**2
