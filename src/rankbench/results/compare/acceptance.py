"""Whether a machine keeps what a baseline promises, row by row and as a whole."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from rankbench.results.compare.sides import Cell, Side
from rankbench.results.numbers.difference import holm, mann_whitney
from rankbench.results.numbers.ratios import chance_of_few
from rankbench.results.numbers.statistics import (
    CONFIDENCE,
    MIN_LAUNCHES,
    Estimate,
    median,
    ratio_of_medians,
)

PASS, FAIL, UNDECIDED = "PASS", "FAIL", "UNDECIDED"

# More launches are planned so that they decide a row with this probability.
POWER = 0.8

MOST_LAUNCHES = 1000

# Statuses of a row that was tried and gave no number.
_FAILED = ("crashed", "oom", "timeout", "mismatch")

# Standard error of what a test rests on, over that of a mean, for normal values: of the
# test of Mann and Whitney, and of the sign test.
_PAIRS, _SIGNS = math.sqrt(math.pi / 3), math.sqrt(math.pi / 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A row of the baseline.

    Attributes:
        id: of the cell.
        verdict: `PASS`, `FAIL` or `UNDECIDED`.
        ratio: throughput over that of the baseline; None without a number.
        why: what is missing, if the verdict is not made by a test; else empty.
        launches: of RESULTS that would probably decide; None if it is decided, or if no
            number of launches would.
        counts: launches of the baseline and of RESULTS.
    """

    id: str
    verdict: str
    ratio: Estimate | None
    why: str
    launches: int | None
    counts: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """RESULTS against a baseline.

    Attributes:
        at_least: the ratio that every row must reach.
        confidence: that no verdict is wrong, over all rows.
        rows: of the baseline, in its order.
    """

    baseline: str
    results: str
    at_least: float
    confidence: float
    rows: Sequence[Judged]

    @property
    def verdict(self) -> str:
        """Of the machine: one row that fails is enough to fail."""
        verdicts = {row.verdict for row in self.rows}
        if FAIL in verdicts:
            return FAIL
        return PASS if verdicts == {PASS} else UNDECIDED


def accept(
    baseline: Side,
    results: Side,
    *,
    at_least: float,
    confidence: float = CONFIDENCE,
) -> Acceptance:
    """Judge each row of the baseline that has a number.

    A row passes if a one-sided test says that its throughput is above `at_least` times
    that of the baseline, and fails if one says that it is below: the test of Mann and
    Whitney, or the sign test if the baseline is one published number. The level is
    corrected for the number of rows (Holm, Scandinavian Journal of Statistics 6, 1979).

    Args:
        baseline, results: from `read_side` and `read_reference`.
        at_least: 0.95 allows a loss of 5 %.
        confidence: that no verdict is wrong, over all rows.

    Raises:
        ValueError: an argument makes no sense, or no row can be compared.
    """
    if not 0 < at_least <= 2:
        raise ValueError(f"--at-least {at_least}: expected a ratio such as 0.95")
    if not 0.5 <= confidence < 1:
        raise ValueError(f"confidence {confidence}: give at least 0.5 and less than 1")
    wanted = {name: cell for name, cell in baseline.cells.items() if cell.throughput}
    if not wanted:
        raise ValueError(f"{baseline.name}: no row has a throughput")
    if wanted.keys().isdisjoint(results.cells):
        raise ValueError(
            f"{baseline.name} and {results.name} have no cell in common: do they "
            "belong to the same experiment?"
        )
    chances = {
        name: _test(cell, results.cells[name], at_least)
        for name, cell in wanted.items()
        if _why_not(cell, results.cells.get(name)) is None
    }
    adjusted = holm([min(both) for both in chances.values()])
    corrected = dict(zip(chances, adjusted, strict=True))
    level = 1 - confidence
    return Acceptance(
        baseline=baseline.name,
        results=results.name,
        at_least=at_least,
        confidence=confidence,
        rows=[
            _judge(
                name,
                cell,
                results.cells.get(name),
                _decide(chances.get(name), corrected.get(name, 1.0), level),
                at_least=at_least,
                level=level / max(1, len(chances)),
            )
            for name, cell in wanted.items()
        ],
    )


def _why_not(old: Cell, new: Cell | None) -> str | None:
    """Why a row cannot be tested."""
    if new is None:
        return "not in RESULTS"
    if old.hash and old.hash != new.hash:
        return "defined otherwise in the baseline"
    if not new.throughput:
        return f"{new.status}: {new.reason}"
    if old.unit != new.unit:
        return f"the baseline has {old.unit}/s, RESULTS have {new.unit}/s"
    counts = [len(new.throughput)] + ([] if _is_fixed(old) else [len(old.throughput)])
    if min(counts) < MIN_LAUNCHES:
        return f"{min(counts)} launches; {MIN_LAUNCHES} are needed"
    return None


def _is_fixed(cell: Cell) -> bool:
    """Whether it is one published number, without launches."""
    return not cell.hash and len(cell.throughput) == 1


def _test(old: Cell, new: Cell, at_least: float) -> tuple[float, float]:
    """Probabilities of these launches if the row were not above, and not below."""
    if _is_fixed(old):
        line = at_least * old.throughput[0]
        return (
            chance_of_few(new.throughput, below=line),
            chance_of_few(new.throughput, above=line),
        )
    line_of_launches = [at_least * value for value in old.throughput]
    return (
        mann_whitney(new.throughput, line_of_launches, side="greater"),
        mann_whitney(new.throughput, line_of_launches, side="less"),
    )


def _decide(
    chances: tuple[float, float] | None, adjusted: float, level: float
) -> str | None:
    """The verdict of the test; None without one."""
    if chances is None:
        return None
    if adjusted > level:
        return UNDECIDED
    return PASS if chances[0] < chances[1] else FAIL


def _judge(
    name: str,
    old: Cell,
    new: Cell | None,
    verdict: str | None,
    *,
    at_least: float,
    level: float,
) -> Judged:
    ratio = _ratio(old, new) if new and new.throughput else None
    launches = None
    if verdict is None:
        has_failed = new is not None and new.status in _FAILED
        verdict = FAIL if has_failed else UNDECIDED
        if ratio and new and len(new.throughput) < MIN_LAUNCHES:
            launches = MIN_LAUNCHES
    elif verdict == UNDECIDED and ratio and new:
        distance = abs(math.log(ratio.value / at_least))
        launches = _launches_for(old, new, distance, level)
    return Judged(
        id=name,
        verdict=verdict,
        ratio=ratio,
        why=_why_not(old, new) or "",
        launches=launches,
        counts=(len(old.throughput), len(new.throughput) if new else 0),
    )


def _ratio(old: Cell, new: Cell) -> Estimate:
    if _is_fixed(old):
        return median([value / old.throughput[0] for value in new.throughput])
    return ratio_of_medians(new.throughput, old.throughput)


def _launches_for(old: Cell, new: Cell, distance: float, level: float) -> int | None:
    """Launches of RESULTS that decide; those of the baseline are what they are.

    A plan, not a test: launches count as normal, on the scale of logarithms.
    """
    reach = NormalDist().inv_cdf(1 - level) + NormalDist().inv_cdf(POWER)
    loss = _SIGNS if _is_fixed(old) else _PAIRS
    allowed = (distance / (reach * loss)) ** 2
    if not _is_fixed(old):
        allowed -= _variance(old) / len(old.throughput)
    scatter = _variance(new)
    if allowed * MOST_LAUNCHES <= scatter:
        return None
    # Without scatter, one more launch is as good as many.
    needed = math.ceil(scatter / allowed) if scatter else 0
    return max(len(new.throughput) + 1, needed)


def _variance(cell: Cell) -> float:
    """Of the logarithms, from the mean absolute deviation."""
    logs = np.log(cell.throughput)
    deviation = float(np.mean(np.abs(logs - np.median(logs))))
    few = len(logs) / (len(logs) - 1)
    return math.pi / 2 * few * deviation**2
