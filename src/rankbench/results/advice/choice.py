"""The best of several rows, and which others cannot be told apart from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from rankbench.results.numbers import fit as fits
from rankbench.results.numbers.fit import Fit, LogRatio, confidence_of_each
from rankbench.results.numbers.statistics import (
    MIN_LAUNCHES,
    Estimate,
    quantile_of_t,
)

# What a row is, beside the best: certainly less; equal within the margin; or neither
# can be told; or it has too few launches to be judged.
LESS, EQUAL, UNTOLD, FEW = "less", "equal", "untold", "few"

# More launches are planned so that they settle a question with this probability.
POWER = 0.8

# Nobody launches a cell more often to settle one question.
MOST_LAUNCHES = 200


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
    fit: Fit, factors: Mapping[str, float], margin: float
) -> tuple[str, dict[str, Rival]]:
    """Find the best of several rows, and compare all others with it.

    The brackets of all rivals hold together, so the best row is called less than
    another with a probability of 5 % at most, although the same launches choose the
    row that the others are compared with (Hsu, Annals of Statistics 12, 1984).

    Args:
        fit: of the launches of these rows, and perhaps of others.
        factors: of the throughput of each row, by name: 1, or one over its devices.
        margin: rows that differ by less are equally good: 0.03 for 3 %.

    Returns:
        The name of the best, and the others by name in descending order.
    """

    def find(name: str, base: str) -> LogRatio:
        ratio = fit.ratio(name, base)
        off = math.log(factors[name] / factors[base])
        return replace(ratio, value=ratio.value + off)

    first, *rest = factors
    heights = {first: 0.0, **{name: find(name, first).value for name in rest}}
    best = max(heights, key=lambda name: heights[name])
    others = sorted(heights.keys() - {best}, key=lambda name: -heights[name])
    confidence = confidence_of_each(len(others))
    return best, {name: _judge(find(name, best), margin, confidence) for name in others}


def _judge(ratio: LogRatio, margin: float, confidence: float) -> Rival:
    bracket = ratio.bracket(confidence)
    if bracket.interval is None:
        return Rival(bracket, FEW, MIN_LAUNCHES)
    verdict = fits.judge(bracket, margin)
    if verdict != fits.UNTOLD:
        return Rival(bracket, EQUAL if verdict == fits.EQUAL else LESS, None)
    # The ratio may turn out to differ from 1, or to be within the margin.
    off = abs(ratio.value)
    distance = max(off, math.log1p(margin) - off)
    return Rival(bracket, UNTOLD, count_launches(ratio, distance, confidence))


def count_launches(ratio: LogRatio, distance: float, confidence: float) -> int | None:
    """Launches of both rows after which the bracket of their ratio is so narrow.

    Args:
        ratio: by the launches that there are; they have an interval.
        distance: from the ratio to an end of its bracket, on the scale of logarithms.
        confidence: of the bracket.

    Returns:
        More launches than there are; None if they are too many.
    """
    for launches in range(ratio.launches + 1, MOST_LAUNCHES + 1):
        share = launches / ratio.launches
        reach = quantile_of_t((1 + confidence) / 2, ratio.freedom * share)
        reach += quantile_of_t(POWER, ratio.freedom * share)
        if reach * ratio.error / math.sqrt(share) <= distance:
            return launches
    return None
