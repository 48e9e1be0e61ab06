"""Statistics against closed forms, known values and simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from rankbench.results.statistics import Estimate, median, ratio_of_medians

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("count", "rank"),
    # The critical values of the two-sided sign test at 5 %, plus one.
    [(6, 1), (7, 1), (8, 1), (9, 2), (10, 2), (11, 2), (12, 3), (15, 4), (20, 6)],
)
def test_interval_ends_at_the_tabled_ranks(count, rank):
    values = list(range(1, count + 1))
    found = median(values[::-1])
    assert found == Estimate((count + 1) / 2, rank, count + 1 - rank)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_no_interval_below_six_launches(count):
    assert median([1.0] * count) == Estimate(1.0)
    assert ratio_of_medians([1.0] * count, [2.0] * 6) == Estimate(0.5)
    assert ratio_of_medians([1.0] * 6, [2.0] * count) == Estimate(0.5)


@pytest.mark.parametrize("count", [6, 9, 10, 17, 30])
def test_interval_is_the_widest_that_a_sign_test_accepts(count):
    rng = np.random.default_rng(count)
    values = rng.lognormal(size=count).tolist()
    found = median(values)
    expected = stats.quantile_test(values, p=0.5).confidence_interval(0.95)
    assert (found.low, found.high) == (expected.low, expected.high)


@pytest.mark.parametrize("count", [6, 10, 20])
def test_interval_of_the_median_covers_it(count):
    rng = np.random.default_rng(1)
    true = 1.0  # the median of exp(normal), which is skewed as times are
    hits = 0
    for sample in rng.lognormal(size=(2000, count)):
        found = median(sample.tolist())
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= true <= found.high
    assert 0.94 <= hits / 2000 <= 0.99


def test_ratio_is_that_of_the_medians():
    above, below = [10.0, 20, 30, 40, 50, 60], [1.0, 2, 3, 4, 5, 1000]
    found = ratio_of_medians(above, below)
    assert found.value == pytest.approx(35 / 3.5)
    assert found.low < found.value < found.high


def test_ratio_is_deterministic():
    rng = np.random.default_rng(2)
    above, below = rng.normal(20, 1, 10).tolist(), rng.normal(10, 1, 10).tolist()
    assert ratio_of_medians(above, below) == ratio_of_medians(above, below)


def test_ratio_of_constants_is_exact():
    assert ratio_of_medians([3.0] * 6, [2.0] * 6) == Estimate(1.5, 1.5, 1.5)


def test_interval_of_the_ratio_covers_it():
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(150):
        above = 2 * rng.lognormal(sigma=0.05, size=10)
        below = rng.lognormal(sigma=0.05, size=10)
        found = ratio_of_medians(above.tolist(), below.tolist())
        hits += found.low <= 2 <= found.high
    assert hits / 150 >= 0.9


def test_scaled_moves_value_and_interval():
    assert Estimate(2.0, 1.0, 4.0).scaled(0.5) == Estimate(1.0, 0.5, 2.0)
    assert Estimate(2.0).scaled(0.5) == Estimate(1.0)
