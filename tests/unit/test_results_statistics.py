"""Statistics against closed forms, known values and simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from rankbench.results.numbers.statistics import (
    Estimate,
    median,
    ratio_of_medians,
    spread,
)

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
    # The true median is that of exp(normal), which is skewed as durations are.
    true = 1.0
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


def test_ratio_and_its_inverse_agree():
    rng = np.random.default_rng(2)
    above, below = rng.normal(20, 1, 10).tolist(), rng.normal(10, 1, 7).tolist()
    one, other = ratio_of_medians(above, below), ratio_of_medians(below, above)
    assert (1 / one.high, 1 / one.value, 1 / one.low) == pytest.approx(
        (other.low, other.value, other.high)
    )


def test_ratio_to_a_constant_has_the_interval_of_the_median():
    # For 9 values, the interval from the 2nd to the 8th holds 96 % and from the 3rd to
    # the 7th 82 %: 95 % are close to the former.
    found = ratio_of_medians([float(n) for n in range(1, 10)], [2.0] * 6)
    assert found.value == 2.5
    assert 1.0 < found.low < 1.1
    assert 3.85 < found.high < 4.0


def test_ratio_of_constants_is_exact():
    assert ratio_of_medians([3.0] * 6, [2.0] * 6) == Estimate(1.5, 1.5, 1.5)


def skewed(rng, shape):
    return rng.lognormal(sigma=0.03, size=shape)


def bimodal(rng, shape):
    """Most launches alike, three in ten a tenth slower."""
    slow = 0.1 * (rng.random(shape) < 0.3)
    return np.exp(0.01 * rng.normal(size=shape) - slow)


def precise(rng, shape):
    return np.exp(0.002 * rng.normal(size=shape))


@pytest.mark.parametrize("count", [6, 10])
@pytest.mark.parametrize(
    ("above", "below"),
    # For the last two, a bootstrap of the ratio of six launches is too narrow.
    [(skewed, skewed), (bimodal, bimodal), (skewed, precise), (bimodal, precise)],
)
def test_interval_of_the_ratio_covers_it(above, below, count):
    rng = np.random.default_rng(3)
    true = np.median(above(rng, 400_000)) / np.median(below(rng, 400_000))
    pairs = zip(above(rng, (1500, count)), below(rng, (1500, count)), strict=True)
    hits = sum(ratio_of_medians(a, b).may_be(true) for a, b in pairs)
    # The limit is the nominal 95 %, minus 1 % for the interpolation, minus chance.
    assert hits / 1500 >= 0.93


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
