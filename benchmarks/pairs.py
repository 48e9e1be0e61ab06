"""Statistics of paired measurements: medians with distribution-free intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

FEWEST = 6


def median_of(values: Sequence[float]) -> tuple[float, float, float]:
    """Median of ratios or differences of pairs, and its 95 % rank interval.

    With fewer than FEWEST pairs there is no interval, and its ends are NaN.
    """
    if len(values) < FEWEST:
        return statistics.median(values), math.nan, math.nan
    from scipy import stats

    test = stats.quantile_test(values, p=0.5)
    interval = test.confidence_interval(confidence_level=0.95)
    return statistics.median(values), float(interval.low), float(interval.high)


def report(
    title: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    *,
    unit: str,
    ratios: Sequence[float] | None = None,
) -> None:
    """Print both medians and the median ratio with its interval.

    Args:
        title: text before the numbers.
        ours: values of rankbench.
        theirs: values of the alternative, in the same order.
        unit: unit of the values.
        ratios: ratios to use; by default one for each pair.
    """
    paired = ratios or [a / b for a, b in zip(ours, theirs, strict=True)]
    ratio, low, high = median_of(paired)
    print(
        f"{title}: {statistics.median(ours):.4g} over {statistics.median(theirs):.4g} "
        f"{unit} = {ratio:.4f} [{low:.4f}, {high:.4f}], n = {len(paired)}"
    )
