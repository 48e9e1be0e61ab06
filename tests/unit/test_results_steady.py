"""The end of the warm-up of a launch, and launches without a steady state."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import signal

from rankbench.results.numbers.launches import FEWEST_STEPS, find_warmups

pytestmark = pytest.mark.unit

FIXED = 10


def find_warmup(steps, fixed):
    """Of one launch."""
    (found,) = find_warmups(steps[None], fixed)
    return found


def make_steps(count=200, *, noise=0.03, correlation=0.0, seed=0, slow=()):
    """Seconds of steps: 10 ms each; `slow` has (begin, end, times as long)."""
    rng = np.random.default_rng(seed)
    independent = noise * np.sqrt(1 - correlation**2) * rng.normal(size=count)
    steps = 0.01 * np.exp(signal.lfilter([1], [1, -correlation], independent))
    for begin, end, times in slow:
        steps[begin:end] *= times
    return steps


@pytest.mark.parametrize(
    ("slow", "end"),
    [
        ([], FIXED),
        # Within the fixed one it changes nothing; a longer one is found.
        ([(0, 9, 3.0)], FIXED),
        ([(0, 30, 1.2)], 30),
        ([(0, 60, 1.2)], 60),
        ([(0, 100, 1.2)], 100),
        # With several levels it ends with the last.
        ([(0, 25, 2.0), (25, 70, 1.3)], 70),
        # A launch that slows down is steady from there.
        ([(60, 200, 1.2)], 60),
        # A level that comes late, or ends near the end, is no steady state.
        ([(0, 140, 1.2)], None),
        ([(150, 200, 1.5)], None),
    ],
)
def test_a_warmup_ends_with_its_last_level(slow, end):
    found = find_warmup(make_steps(slow=slow), FIXED)
    if end in (FIXED, None):
        assert found == end
    else:
        assert abs(found - end) <= 3


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
    assert abs(find_warmup(steps, FIXED) - 30_000) <= 1000


def test_launches_are_judged_together_as_each_alone():
    slow = [[], [(0, 60, 1.2)], [(0, 140, 1.2)], [(0, 25, 2.0), (25, 70, 1.3)]]
    steps = np.stack([make_steps(slow=own, seed=n) for n, own in enumerate(slow)])
    assert find_warmups(steps, FIXED) == [find_warmup(own, FIXED) for own in steps]
