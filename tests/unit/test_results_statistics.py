"""Statistics against closed forms, known values and simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from rankbench.results.numbers.statistics import (
    Estimate,
    geometric_mean,
    mean,
    spread,
)

pytestmark = pytest.mark.unit


def test_the_interval_of_a_mean_is_students():
    values = np.random.default_rng(1).normal(10, 1, 9)
    found = mean(values.tolist())
    theirs = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert found.value == pytest.approx(values.mean())
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high))


def test_the_mean_of_a_rate_is_one_over_that_of_its_time():
    rates = [10.0, 12.0, 9.0, 11.0, 30.0]
    rate = geometric_mean(rates)
    time = geometric_mean([1 / one for one in rates])
    assert (rate.value, rate.low, rate.high) == pytest.approx(
        (1 / time.value, 1 / time.high, 1 / time.low)
    )
    assert rate.value == pytest.approx(stats.gmean(rates))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_no_interval_below_four_launches(count):
    assert mean([1.0] * count) == Estimate(1.0)
    assert geometric_mean([1.0] * count) == Estimate(1.0)


def test_values_that_do_not_scatter_are_exact():
    assert mean([2.0] * 6) == Estimate(2.0, 2.0, 2.0)


def test_spread_is_relative_and_robust():
    values = [98.0, 99.0, 100.0, 101.0, 102.0]
    assert spread(values) == pytest.approx(0.02)
    assert spread([10 * value for value in values]) == pytest.approx(0.02)
    assert spread([*values[:-1], 1e9]) == pytest.approx(0.02)


def test_an_estimate_may_be_what_its_interval_holds():
    found = Estimate(1.0, 0.9, 1.1)
    assert found.may_be(1.1)
    assert not found.may_be(1.2)
    assert not Estimate(1.0).may_be(1.0)


def test_scaled_moves_value_and_interval():
    assert Estimate(2.0, 1.0, 4.0).scaled(0.5) == Estimate(1.0, 0.5, 2.0)
    assert Estimate(2.0).scaled(0.5) == Estimate(1.0)
