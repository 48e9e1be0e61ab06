"""Whether two samples differ: exact values, false alarms, power, many cells."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from rankbench.results.numbers.difference import adjust, can_be_found, differ, trend
from rankbench.results.numbers.statistics import Estimate

pytestmark = pytest.mark.unit

SLOW = [1.0, 2, 3, 4, 5, 6]
FAST = [value * 10 for value in SLOW]


def test_separate_samples_have_the_smallest_p_value_there_is():
    found = differ([*FAST[1:], 70.0], SLOW)
    assert found.superiority == 1.0
    # Two of the 924 ways to split twelve launches into two groups are that extreme.
    assert found.p_value == pytest.approx(2 / 924)


def test_superiority_is_the_share_of_pairs_won_and_ties_are_half():
    found = differ([1.0, 2.0, 5.0], [2.0, 4.0])
    wins = [1 if a > b else 0.5 if a == b else 0 for a in (1, 2, 5) for b in (2, 4)]
    assert found.superiority == pytest.approx(np.mean(wins))


def test_ratio_is_the_median_of_all_ratios():
    found = differ([2.0, 3.0, 5.0], [1.0, 4.0])
    ratios = [a / b for a, b in itertools.product((2, 3, 5), (1, 4))]
    assert found.ratio == Estimate(np.median(ratios))
    assert found.p_value is None


@pytest.mark.parametrize("counts", [(6, 6), (6, 9), (10, 10), (25, 14), (70, 70)])
def test_interval_and_test_agree(counts):
    rng = np.random.default_rng(1)
    seen = set()
    for shift in np.linspace(0, 0.06, 40):
        above = np.exp(shift + 0.03 * rng.normal(size=counts[0]))
        below = np.exp(0.03 * rng.normal(size=counts[1]))
        found = differ(above, below)
        seen.add(found.p_value <= 0.05)
        assert found.ratio.may_be(1.0) == (found.p_value > 0.05)
    assert seen == {True, False}


@pytest.mark.parametrize("counts", [(6, 6), (9, 6)])
def test_interval_ends_at_the_tabled_ranks(counts):
    # Critical values of Mann and Whitney, two-sided 5 %: 5 for 6 and 6, 10 for 9 and 6.
    rank = {(6, 6): 6, (9, 6): 11}[counts]
    rng = np.random.default_rng(2)
    above, below = rng.lognormal(size=counts[0]), rng.lognormal(size=counts[1])
    ratios = np.sort(np.divide.outer(above, below), axis=None)
    found = differ(above, below).ratio
    assert (found.low, found.high) == (ratios[rank - 1], ratios[-rank])


def test_there_is_no_interval_at_a_confidence_that_six_launches_cannot_give():
    found = differ(FAST, SLOW, confidence=0.999)
    assert found.ratio.interval is None


def test_false_alarms_are_as_rare_as_promised():
    """Launches that scatter as real ones do: skewed, or of two kinds."""
    rng = np.random.default_rng(4)
    alarms, pairs = 0, 2000
    for pair in range(pairs):
        slow = 0.1 * (rng.random((2, 10)) < 0.3) if pair % 2 else 0
        old, new = np.exp(0.02 * rng.exponential(size=(2, 10)) - slow)
        alarms += differ(new, old).p_value <= 0.05
    bound = stats.binomtest(alarms, pairs, alternative="less").proportion_ci(0.95)
    assert bound.high <= 0.065


def test_a_slowdown_of_three_percent_is_found():
    """In 10 launches on each side, where launches scatter by 3 % (quartiles)."""
    rng = np.random.default_rng(5)
    found = 0
    for _ in range(400):
        old, new = np.exp(0.022 * rng.normal(size=(2, 10)))
        difference = differ(0.97 * new, old)
        found += difference.p_value <= 0.05 and difference.superiority < 0.5
    assert found / 400 >= 0.75


def test_within_the_margin_is_no_difference():
    rng = np.random.default_rng(6)
    old = np.exp(0.001 * rng.normal(size=10))
    new = 0.97 * np.exp(0.001 * rng.normal(size=10))
    assert differ(new, old).p_value < 0.001
    assert differ(new, old, margin=0.05).p_value > 0.5
    assert differ(old, new, margin=0.05).p_value > 0.5
    assert differ(new, old, margin=0.02).p_value < 0.001
    assert differ(old, new, margin=0.02).p_value < 0.001


@pytest.mark.parametrize("value", [1.0, 812.5])
def test_constants_that_are_equal_do_not_differ(value):
    found = differ([value] * 6, [value] * 6)
    assert found.p_value == 1.0
    assert found.ratio == Estimate(1.0, 1.0, 1.0)
    assert found.superiority == 0.5


def test_a_trend_is_told_from_chance():
    rising = [1.0, 2, 3, 4, 5, 6]
    # Two of the 720 orders are that clear.
    assert trend(rising) == pytest.approx(2 / 720)
    assert trend([3.0, 1, 6, 2, 5, 4]) > 0.3
    assert trend(rising[:3]) is None
    assert trend([1.0] * 6) is None


def test_adjusting_keeps_most_of_many_that_changed():
    assert adjust([0.04]) == [0.04]
    assert adjust([]) == []
    # If one of ten cells differs, its evidence must be ten times as strong; if all ten
    # differ, it need not.
    assert adjust([0.04] + [0.9] * 9)[0] == pytest.approx(0.4)
    assert adjust([0.04] * 10) == pytest.approx([0.04] * 10)


def test_few_launches_cannot_find_one_among_many():
    assert can_be_found(6, 6, level=0.05, cells=23)
    assert not can_be_found(6, 6, level=0.05, cells=24)
    assert can_be_found(8, 8, level=0.05, cells=300)
