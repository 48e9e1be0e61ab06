"""Ratios of two runs, within rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from scipy import special

from rankbench.results.numbers.difference import Difference
from rankbench.results.numbers.fit import MARGIN as MARGIN
from rankbench.results.numbers.statistics import MIN_LAUNCHES, median

ByRound = Mapping[Any, float]


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
