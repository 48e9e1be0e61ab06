"""What is compared with the best row, and where a series stops scaling."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from rankbench.results.advice.choice import (
    APART,
    LESS,
    choose,
    find_end,
    find_noisy,
)
from rankbench.results.numbers.statistics import Estimate, Fit

pytestmark = pytest.mark.unit

RATES = 100 * np.exp(0.01 * np.random.default_rng(1).normal(size=(4, 8)))


def rounds(rates: np.ndarray, first: int = 1) -> list[tuple[int, float]]:
    return [(number, float(one)) for number, one in enumerate(rates, start=first)]


def test_rows_of_other_rounds_are_apart_however_fast_they_are():
    own = {str(place): rounds(rates) for place, rates in enumerate(RATES)}
    own["2"] = rounds(3 * RATES[2], first=100)
    own["1"] = rounds(1.5 * RATES[1])
    best, rivals = choose(Fit(own), dict.fromkeys(own, 1.0), 0.03)
    verdicts = {rival.cell: rival.verdict for rival in rivals}
    assert (best, verdicts) == ("1", {"0": LESS, "3": LESS, "2": APART})
    assert [rival.ratio for rival in rivals if rival.cell == "2"] == [None]
    assert find_noisy(rivals) is None


def test_nothing_is_the_best_of_rows_that_are_all_apart():
    own = {str(n): rounds(rates, first=1000 * n) for n, rates in enumerate(RATES)}
    _, rivals = choose(Fit(own), dict.fromkeys(own, 1.0), 0.03)
    assert {rival.verdict for rival in rivals} == {APART}


@pytest.mark.parametrize(
    ("brackets", "above", "end", "is_below"),
    [
        ([(0.9, 0.95), (0.8, 0.85)], 2, None, False),
        # It dips: what comes behind does not count.
        ([(0.9, 0.95), (0.63, 0.65), (0.8, 0.85)], 1, 1, True),
        ([(0.9, 0.95), (0.65, 0.75), (0.5, 0.6)], 1, 1, False),
        # The printed bracket holds 0.70.
        ([(0.7001, 0.7501)], 0, 0, False),
    ],
)
def test_a_series_ends_at_the_first_point_that_is_not_above(
    brackets, above, end, is_below
):
    points = [
        SimpleNamespace(
            devices=2**place,
            numbers={"efficiency": Estimate((low + high) / 2, low, high)},
        )
        for place, (low, high) in enumerate(brackets)
    ]
    found, stop, below = find_end(points[::-1], 0.7)
    assert [one.devices for one in found] == [2**n for n in range(above)]
    assert stop is (None if end is None else points[end])
    assert below == is_below
