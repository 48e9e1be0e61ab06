"""The ratio of two rows: from launches of the same rounds, or else of all launches.

Within a round, both cells were launched on the machine as it was then. So a machine
that changes from round to round does not change their ratio.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy import special

from rankbench.results.numbers.difference import (
    Difference,
    adjust,
    is_equal,
    mann_whitney,
)
from rankbench.results.numbers.statistics import (
    CONFIDENCE,
    MIN_LAUNCHES,
    Estimate,
    median,
    ratio_of_medians,
)

# Two rows are equal if their ratio is within 1 +- this share.
MARGIN = 0.03

EQUAL, UNTOLD = "=", "n.s."

# What identifies the round of a launch -> its throughput.
ByRound = Mapping[Any, float]


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of throughputs.

    Attributes:
        estimate: with its interval, for this ratio alone.
        paired: whether it is made of ratios within rounds.
        different: probability of a ratio as far from 1 as this, if the true one is 1;
            None with too few launches.
        equal: probability of a ratio as near to 1 as this, if the true one is outside
            of 1 +- the margin; None with too few launches.
    """

    estimate: Estimate
    paired: bool
    different: float | None
    equal: float | None


def find_ratio(
    above: ByRound,
    below: ByRound,
    *,
    factor: float = 1.0,
    confidence: float = CONFIDENCE,
    margin: float = MARGIN,
) -> Ratio:
    """The ratio of two rows, paired by round if enough rounds have both.

    Args:
        above, below: positive.
        factor: the ratio is multiplied by it.
        confidence: of the interval.
        margin: two rows are equal if their ratio is within 1 +- this share.
    """
    if common := find_pairs(above, below):
        ratios = [factor * above[one] / below[one] for one in common]
        return _paired(ratios, confidence, margin)
    own = [factor * value for value in above.values()]
    base = list(below.values())
    few = min(len(own), len(base)) < MIN_LAUNCHES
    return Ratio(
        ratio_of_medians(own, base, confidence=confidence),
        paired=False,
        different=None if few else mann_whitney(own, base),
        equal=None if few else is_equal(own, base, margin),
    )


def find_pairs(above: Mapping[Any, object], below: Mapping[Any, object]) -> list[Any]:
    """The rounds that both sides have; none if they are too few for an interval."""
    common = [one for one in above if one in below]
    enough = min(MIN_LAUNCHES, len(above), len(below))
    return common if len(common) >= enough else []


def differ_by_round(
    above: ByRound,
    below: ByRound,
    rounds: Sequence[Any],
    *,
    confidence: float,
    margin: float,
    within: float,
) -> Difference:
    """What `differ` gives, for launches of the same rounds."""
    ratios = [above[one] / below[one] for one in rounds]
    estimate = median(ratios, confidence)
    wins = sum((one > 1) + (one == 1) / 2 for one in ratios) / len(ratios)
    if len(ratios) < MIN_LAUNCHES:
        return Difference(estimate, wins, None)
    slower, faster = (
        chance_of_few(ratios, above=1 - margin),
        chance_of_few(ratios, below=1 / (1 - margin)),
    )
    p_value = min(1.0, 2 * min(slower, faster))
    return Difference(estimate, wins, p_value, _chance_of_equality(ratios, within))


def _paired(ratios: Sequence[float], confidence: float, margin: float) -> Ratio:
    """The median ratio within a round, and the interval of the sign test.

    The number of rounds whose ratio is below the true median is binomial, whatever the
    distributions of both cells. Wilcoxon's signed ranks would give a narrower interval,
    but they ask for symmetry: where a cell with two levels was divided by one that
    hardly scatters, they covered 87 % instead of 95 % (`benchmarks/rounds.py`).
    """
    estimate = median(ratios, confidence)
    if len(ratios) < MIN_LAUNCHES:
        return Ratio(estimate, paired=True, different=None, equal=None)
    few = min(chance_of_few(ratios, above=1.0), chance_of_few(ratios, below=1.0))
    return Ratio(
        estimate,
        paired=True,
        different=min(1.0, 2 * few),
        equal=_chance_of_equality(ratios, margin),
    )


def _chance_of_equality(ratios: Sequence[float], within: float) -> float:
    """Two one-sided tests (Schuirmann 1987), for equality within a margin."""
    return max(
        chance_of_few(ratios, above=1 + within),
        chance_of_few(ratios, below=1 / (1 + within)),
    )


def chance_of_few(
    ratios: Sequence[float], *, above: float = math.inf, below: float = -math.inf
) -> float:
    """The sign test: probability of so few ratios above (or below) their median."""
    count = sum(one > above or one < below for one in ratios)
    count += math.ceil(sum(one in (above, below) for one in ratios) / 2)
    return float(special.bdtr(count, len(ratios), 0.5))


def judge_ratios(ratios: Mapping[str, Ratio]) -> dict[str, str]:
    """`EQUAL`, `UNTOLD`, or nothing for a ratio that differs from 1, by name.

    P-values are corrected for the number of ratios (`adjust`). A ratio with too few
    launches for a test has no verdict.
    """
    tested = {
        name: (ratio.different, ratio.equal)
        for name, ratio in ratios.items()
        if ratio.different is not None and ratio.equal is not None
    }
    different = adjust([one for one, _ in tested.values()])
    equal = adjust([one for _, one in tested.values()])
    level = 1 - CONFIDENCE
    found = {}
    for name, differs, alike in zip(tested, different, equal, strict=True):
        if alike <= level:
            found[name] = EQUAL
        else:
            found[name] = "" if differs <= level else UNTOLD
    return found
