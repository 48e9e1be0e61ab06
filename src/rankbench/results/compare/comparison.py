"""Compare two runs: which cells became better, worse, or stayed equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rankbench.results.compare.sides import Cell, Side
from rankbench.results.numbers.difference import (
    Difference,
    adjust,
    can_be_found,
    differ,
    trend,
)
from rankbench.results.numbers.ratios import MARGIN, differ_by_round, find_pairs
from rankbench.results.numbers.statistics import CONFIDENCE, MIN_LAUNCHES

BETTER, WORSE, EQUAL, UNTOLD = "better", "worse", "equal", "cannot tell"
TOO_FEW, LOST, GAINED, CHANGED = "too few launches", "lost", "gained", "changed"
NO_NUMBER = "no number"

# Verdict -> its meaning, in the order of the output.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A cell that both sides have.

    Attributes:
        id: of the cell.
        verdict: one of `VERDICTS`.
        old, new: its launches.
        difference: of NEW's throughput from OLD's; None unless both have a number.
        adjusted: its p-value, corrected for the number of cells; None without one.
    """

    id: str
    verdict: str
    old: Cell
    new: Cell
    difference: Difference | None = None
    adjusted: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """NEW against OLD.

    Attributes:
        confidence, margin: the arguments of `compare`.
        within: relative differences that still count as equal.
        paired: whether launches of the same rounds were compared.
        facts: what differs between the sides: key -> values in OLD, and in NEW.
        cells: those that both have, in NEW's order.
        only_old, only_new: ids of cells that one side has alone.
        blind: cells with too few launches to find a change of one cell alone.
        drifting: cells whose launches became steadily faster or slower in OLD or in
            NEW. The machine changed meanwhile, perhaps between OLD and NEW as well.
    """

    old: Side
    new: Side
    confidence: float
    margin: float
    within: float
    paired: bool
    facts: Mapping[str, tuple[Sequence[str], Sequence[str]]]
    cells: Sequence[Compared]
    only_old: Sequence[str]
    only_new: Sequence[str]
    blind: Sequence[str]
    drifting: Sequence[str]

    def having(self, verdict: str) -> list[Compared]:
        return [cell for cell in self.cells if cell.verdict == verdict]

    @property
    def is_worse(self) -> bool:
        return bool(self.having(WORSE) or self.having(LOST))

    @property
    def order(self) -> str | None:
        """Which side was measured first; None if they overlap or it is not known."""
        if not self.old.span or not self.new.span:
            return None
        if self.old.span[1] <= self.new.span[0]:
            return "OLD before NEW"
        return "NEW before OLD" if self.new.span[1] <= self.old.span[0] else None

    @property
    def judged(self) -> int:
        """Cells that were tested."""
        return sum(cell.adjusted is not None for cell in self.cells)


def compare(
    old: Side, new: Side, *, confidence: float = CONFIDENCE, margin: float = 0.0
) -> Comparison:
    """Compare the throughput of each cell that both sides have.

    Args:
        confidence: of the verdicts, over all cells, and of each cell's interval.
        margin: relative differences up to this one are not called worse or better.

    Raises:
        ValueError: confidence or margin make no sense.
    """
    if not 0.5 <= confidence < 1:
        raise ValueError(f"confidence {confidence}: give at least 0.5 and less than 1")
    if not 0 <= margin < 1:
        raise ValueError(f"margin {margin}: give at least 0 and less than 1")
    both = [name for name in new.cells if name in old.cells]
    pairs = {name: (old.cells[name], new.cells[name]) for name in both}
    within = max(margin, MARGIN)
    found: dict[str, Difference] = {}
    paired = []
    for name, (before, after) in pairs.items():
        if before.hash != after.hash or not before.throughput or not after.throughput:
            continue
        above, below = after.by_round, before.by_round
        rounds = find_pairs(above, below)
        paired.append(bool(rounds))
        options = {"confidence": confidence, "margin": margin, "within": within}
        if rounds:
            found[name] = differ_by_round(above, below, rounds, **options)
        else:
            found[name] = differ(after.throughput, before.throughput, **options)
    tested = {name: d.p_value for name, d in found.items() if d.p_value is not None}
    adjusted = dict(zip(tested, adjust(list(tested.values())), strict=True))
    alike = {name: d.equal for name, d in found.items() if d.equal is not None}
    equal = dict(zip(alike, adjust(list(alike.values())), strict=True))
    level = 1 - confidence
    cells = [
        Compared(
            id=name,
            verdict=_judge(
                *sides, found.get(name), adjusted.get(name), equal.get(name, 1.0), level
            ),
            old=sides[0],
            new=sides[1],
            difference=found.get(name),
            adjusted=adjusted.get(name),
        )
        for name, sides in pairs.items()
    ]
    counts = {name: [len(side.throughput) for side in pairs[name]] for name in tested}
    return Comparison(
        old=old,
        new=new,
        confidence=confidence,
        margin=margin,
        within=within,
        paired=bool(paired) and all(paired),
        facts=find_differing(old.facts, new.facts),
        cells=cells,
        only_old=[name for name in old.cells if name not in new.cells],
        only_new=[name for name in new.cells if name not in old.cells],
        blind=[
            name
            for name, count in counts.items()
            if not can_be_found(*count, level=level, cells=len(tested))
        ],
        drifting=_find_drifting(pairs, level),
    )


def _find_drifting(pairs: Mapping[str, tuple[Cell, Cell]], level: float) -> list[str]:
    chances = {
        (name, place): chance
        for name, sides in pairs.items()
        for place, side in enumerate(sides)
        if (chance := trend(side.throughput)) is not None
    }
    adjusted = zip(chances, adjust(list(chances.values())), strict=True)
    found = {name for (name, _), chance in adjusted if chance <= level}
    return [name for name in pairs if name in found]


def _judge(
    old: Cell,
    new: Cell,
    difference: Difference | None,
    adjusted: float | None,
    equal: float,
    level: float,
) -> str:
    if old.hash != new.hash:
        return CHANGED
    if difference is None:
        if old.throughput:
            return LOST
        return GAINED if new.throughput else NO_NUMBER
    if adjusted is None:
        return TOO_FEW
    if adjusted > level:
        return EQUAL if equal <= level else UNTOLD
    return BETTER if difference.superiority > 0.5 else WORSE


def find_differing(
    old: Mapping[str, Sequence[str]], new: Mapping[str, Sequence[str]]
) -> dict[str, tuple[Sequence[str], Sequence[str]]]:
    """Facts that differ; none if one side has no measurement."""
    if not old or not new:
        return {}
    keys = dict.fromkeys((*new, *old))
    sides = {key: (old.get(key, ()), new.get(key, ())) for key in keys}
    return {key: (a, b) for key, (a, b) in sides.items() if tuple(a) != tuple(b)}
