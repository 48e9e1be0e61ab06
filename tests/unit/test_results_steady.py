"""The end of the warm-up of a launch, and launches without a steady state."""

from __future__ import annotations

import time

import numpy as np
import pytest
from scipy import signal

from rankbench.results.numbers.steady import FEWEST_STEPS, find_warmup

pytestmark = pytest.mark.unit

FIXED = 10


def make_steps(count=200, *, noise=0.03, correlation=0.0, seed=0, slow=()):
    """Seconds of steps: 10 ms each; `slow` has (begin, end, times as long)."""
    rng = np.random.default_rng(seed)
    independent = noise * np.sqrt(1 - correlation**2) * rng.normal(size=count)
    steps = 0.01 * np.exp(signal.lfilter([1], [1, -correlation], independent))
    for begin, end, times in slow:
        steps[begin:end] *= times
    return steps


def test_steady_steps_keep_the_fixed_warmup():
    assert find_warmup(make_steps(), FIXED) == FIXED


def test_a_warmup_within_the_fixed_one_changes_nothing():
    assert find_warmup(make_steps(slow=[(0, 9, 3.0)]), FIXED) == FIXED


@pytest.mark.parametrize("end", [30, 60, 100])
def test_a_longer_warmup_is_found(end):
    found = find_warmup(make_steps(slow=[(0, end, 1.2)]), FIXED)
    assert abs(found - end) <= 3


def test_a_warmup_of_several_levels_ends_with_the_last():
    steps = make_steps(slow=[(0, 25, 2.0), (25, 70, 1.3)])
    assert abs(find_warmup(steps, FIXED) - 70) <= 3


def test_a_launch_that_slows_down_is_steady_from_there():
    steps = make_steps(slow=[(60, 200, 1.2)])
    assert abs(find_warmup(steps, FIXED) - 60) <= 3


def test_a_level_that_comes_late_is_no_steady_state():
    assert find_warmup(make_steps(slow=[(0, 140, 1.2)]), FIXED) is None


def test_a_change_near_the_end_is_no_steady_state():
    assert find_warmup(make_steps(slow=[(150, 200, 1.5)]), FIXED) is None


def test_a_small_change_does_not_matter():
    assert find_warmup(make_steps(noise=0.01, slow=[(0, 100, 1.03)]), FIXED) == FIXED


def test_single_slow_steps_are_no_level():
    """Such as at the start of each epoch, or while others use the machine."""
    slow = [(begin, begin + 1, 4.0) for begin in range(0, 200, 22)]
    assert find_warmup(make_steps(slow=slow), FIXED) == FIXED


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.8])
def test_noise_is_not_taken_for_a_warmup(correlation):
    """Noise may be correlated from step to step."""
    found = [
        find_warmup(make_steps(noise=0.1, correlation=correlation, seed=seed), FIXED)
        for seed in range(200)
    ]
    assert sum(one != FIXED for one in found) <= 200 * 0.05


def test_few_steps_keep_the_fixed_warmup():
    steps = make_steps(FEWEST_STEPS - 1, slow=[(0, 20, 5.0)])
    assert find_warmup(steps, FIXED) == FIXED
    assert find_warmup(steps[:0], FIXED) == FIXED


def test_equal_steps_are_steady():
    assert find_warmup(np.full(100, 0.01), 0) == 0
    assert find_warmup(np.zeros(100), 0) == 0


def test_many_steps_are_judged_at_once():
    steps = make_steps(100_000, slow=[(0, 30_000, 1.2)])
    begun = time.perf_counter()
    found = find_warmup(steps, FIXED)
    assert abs(found - 30_000) <= 1000
    assert time.perf_counter() - begun < 1
