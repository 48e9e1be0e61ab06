"""Ratios of paired measurements, with a distribution-free interval."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from scipy import stats


def ratio_of_pairs(
    ours: Sequence[float], theirs: Sequence[float]
) -> tuple[float, float, float]:
    """Median of the pairwise ratios, and its 95 % rank interval."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    test = stats.quantile_test(ratios, p=0.5)
    interval = test.confidence_interval(confidence_level=0.95)
    return statistics.median(ratios), float(interval.low), float(interval.high)


def report(
    title: str, ours: Sequence[float], theirs: Sequence[float], *, unit: str
) -> None:
    ratio, low, high = ratio_of_pairs(ours, theirs)
    print(
        f"{title}: {statistics.median(ours):.4g} over {statistics.median(theirs):.4g} "
        f"{unit} = {ratio:.4f} [{low:.4f}, {high:.4f}], {len(ours)} pairs"
    )
