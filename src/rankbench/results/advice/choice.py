"""The best of several rows, and which others cannot be told apart from it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, median
from typing import Any

import numpy as np

from rankbench.results.numbers.difference import is_equal, mann_whitney
from rankbench.results.numbers.ratios import ByRound, Ratio, find_pairs, find_ratio
from rankbench.results.numbers.statistics import MIN_LAUNCHES, Estimate

# What a row is, beside the best: certainly less; equal within the margin; or neither
# can be told; or it has too few launches to be judged.
LESS, EQUAL, UNTOLD, FEW = "less", "equal", "untold", "few"

# The best row is called less than another with this probability at most.
ERROR = 0.05

# More launches are planned so that they settle a question with this probability.
POWER = 0.8

# Nobody launches a cell more often to settle one question.
MOST_LAUNCHES = 200

# Of a normal distribution: the standard deviation over the mean absolute deviation, and
# also the standard error of the median over that of the mean.
_NORMAL = math.sqrt(math.pi / 2)


@dataclass(frozen=True, slots=True)
class Rival:
    """A row beside the best one.

    Attributes:
        ratio: this row over the best one.
        verdict: `LESS`, `EQUAL`, `UNTOLD` or `FEW`.
        launches: how many launches of both would settle it, all in all; None if it is
            settled, or if more than `MOST_LAUNCHES` would be needed.
    """

    ratio: Estimate
    verdict: str
    launches: int | None


def choose(
    rows: Mapping[str, ByRound], margin: float
) -> tuple[str, dict[str, Rival]] | None:
    """Find the row with the largest median, and compare all others with it.

    All rivals share the error, because the best is chosen by the same launches
    (Bonferroni). A row is equal if two one-sided tests exclude a difference beyond the
    margin (Schuirmann 1987).

    Args:
        rows: by name; more is better, all values are positive.
        margin: rows that differ by less are equally good: 0.03 for 3 %.

    Returns:
        The name of the best, and the others by name in descending order; None without
        rows.
    """
    if not rows:
        return None
    middle = {name: median(values.values()) for name, values in rows.items()}
    best = max(middle, key=lambda name: middle[name])
    others = sorted(middle.keys() - {best}, key=lambda name: -middle[name])
    level = ERROR / max(1, len(others))
    found = {name: _judge(rows[name], rows[best], margin, level) for name in others}
    return best, found


def _judge(own: ByRound, best: ByRound, margin: float, level: float) -> Rival:
    ratio = find_ratio(own, best, margin=margin)
    if ratio.different is None:
        return Rival(ratio.estimate, FEW, MIN_LAUNCHES)
    less, equal = _test(own, best, ratio, margin, level)
    # A difference within the margin may be certain; it does not matter.
    if equal <= level:
        return Rival(ratio.estimate, EQUAL, None)
    if less <= level:
        return Rival(ratio.estimate, LESS, None)
    # The ratio may turn out to differ from 1, or to be within the margin.
    off, allowed = abs(math.log(ratio.estimate.value)), math.log1p(margin)
    distance = max(off, allowed - off)
    launches = count_launches(own, best, distance, level)
    return Rival(ratio.estimate, UNTOLD, launches)


def _test(
    own: ByRound, best: ByRound, ratio: Ratio, margin: float, level: float
) -> tuple[float, float]:
    """Probabilities of what was seen if the row were not less, and if not equal.

    Few rounds cannot reach a level that many rivals share: of six, even six wins have a
    probability of 1.6 %. Then all launches are compared by Mann and Whitney's test. Its
    steps are finer, and what the launches of a round have in common makes it cautious.
    """
    assert ratio.different is not None
    assert ratio.equal is not None
    if ratio.paired and 0.5 ** len(find_pairs(own, best)) > level:
        sides = list(own.values()), list(best.values())
        return mann_whitney(*sides, side="less"), is_equal(*sides, margin)
    # Half of the two-sided probability is on the side where the ratio is.
    less = ratio.different / 2 if ratio.estimate.value < 1 else 1.0
    return less, ratio.equal


def count_launches(
    above: ByRound, below: ByRound, distance: float, level: float
) -> int | None:
    """Launches of both rows after which a bound of their ratio is nearer than this.

    A plan, not a test: it takes the scatter of the launches for that of a normal
    distribution with the same mean absolute deviation.

    Args:
        above, below: the launches that there are.
        distance: from the ratio to its bound, on the scale of logarithms.
        level: of a one-sided test.

    Returns:
        More launches than there are; None if they are too many.
    """
    if rounds := find_pairs(above, below):
        scatter = _scatter([math.log(above[one] / below[one]) for one in rounds])
    else:
        sides = [[math.log(value) for value in one.values()] for one in (above, below)]
        scatter = math.hypot(*map(_scatter, sides))
    normal = NormalDist()
    reach = normal.inv_cdf(1 - level) + normal.inv_cdf(POWER)
    if reach * _NORMAL * scatter > distance * math.sqrt(MOST_LAUNCHES):
        return None
    needed = math.ceil((reach * _NORMAL * scatter / distance) ** 2) if scatter else 0
    found = max(needed, math.ceil(-math.log2(level)), min(len(above), len(below)) + 1)
    return found if found <= MOST_LAUNCHES else None


def _scatter(values: Sequence[float]) -> float:
    deviations = np.abs(np.subtract(values, np.median(values)))
    # The median was chosen by the same values, so they are too near to it.
    few = math.sqrt(len(values) / (len(values) - 1))
    return _NORMAL * few * float(np.mean(deviations))


def by_round(values: Mapping[Any, Any], name: str) -> dict[Any, float]:
    """One number of each launch, by round."""
    return {one: float(getattr(launch, name)) for one, launch in values.items()}
