"""Segments of a series of runs: false alarms, what is found, and what is no change."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rankbench.results.history.segments import (
    MIN_SERIES,
    best_breaks,
    chance_of_change,
    find_breaks,
)

pytestmark = pytest.mark.unit

DRAWS = {"permutations": 999}


def noise(seed: int, runs: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.02, runs)


def test_p_values_of_unchanged_series_are_not_too_small() -> None:
    found = [chance_of_change(noise(i, 20), seed=i, **DRAWS) for i in range(400)]
    # Binomial: 400 x 5 % is 20, and 34 are seen once in a thousand times.
    assert sum(p <= 0.05 for p in found) < 34
    # The correction for two tests makes them somewhat larger than need be.
    assert 0.4 < np.mean(found) < 0.8


def test_a_step_is_found_at_its_run() -> None:
    values = noise(1, 40)
    values[25:] -= 0.08
    # The smallest possible, for two tests.
    assert chance_of_change(values, seed=1, **DRAWS) == 2 / 1000
    (found,) = find_breaks(values, level=0.01, seed=1, **DRAWS)
    assert abs(found - 25) <= 1


def test_a_new_step_is_found_after_three_runs() -> None:
    """A step of three standard deviations, for which the general test is too weak."""
    found = 0
    for seed in range(100):
        values = noise(seed, 33)
        values[30:] -= 3 * 0.02
        found += chance_of_change(values, seed=seed, **DRAWS) <= 0.05
    # It was 100 when this was written, and 89 without the test at the end.
    assert found >= 90


def test_a_step_that_was_undone_is_two_changes() -> None:
    values = noise(2, 100)
    values[50:58] -= 0.12
    assert chance_of_change(values, seed=1, **DRAWS) <= 0.002
    assert find_breaks(values, level=0.01, seed=1, **DRAWS) == [50, 58]


def test_one_bad_run_is_no_change_and_hides_none() -> None:
    values = noise(3, 40)
    values[10] -= 0.5
    assert chance_of_change(values, seed=1, **DRAWS) > 0.05
    values[25:] -= 0.08
    assert chance_of_change(values, seed=1, **DRAWS) <= 0.002
    (found,) = find_breaks(values, level=0.01, seed=1, **DRAWS)
    assert abs(found - 25) <= 1


def test_no_order_of_fewer_runs_is_rare_enough() -> None:
    """Two levels far apart, which no other order of the same runs tops."""

    def share(runs: int) -> float:
        values = [*range(runs // 2), *range(100, 100 + runs - runs // 2)]
        return chance_of_change(values, seed=1, permutations=20_000)

    assert share(MIN_SERIES) < 0.05 < share(MIN_SERIES - 1)


def test_the_chance_is_that_of_all_orders() -> None:
    values = [0.0, 3.0, 1.0, 9.0, 7.0, 8.0]
    whole = [
        chance_of_change(list(order), seed=0, permutations=1)
        for order in itertools.islice(itertools.permutations(values), 3)
    ]
    assert set(whole) <= {0.5, 1.0}
    # 3 low ones before 3 high ones, in either direction: 2 of 20 orders.
    found = chance_of_change(values, seed=1, permutations=20_000)
    assert found == pytest.approx(0.1, abs=0.03)


def test_the_same_seed_gives_the_same_answer() -> None:
    values = noise(4, 30)
    first = chance_of_change(values, seed=7, **DRAWS)
    assert first == chance_of_change(values, seed=7, **DRAWS)


def test_equal_values_have_no_change() -> None:
    assert chance_of_change([5.0] * 20, seed=1, **DRAWS) == 1.0


def test_segments_have_two_runs_at_least() -> None:
    for count in range(1, 5):
        edges = [0, *best_breaks(noise(5, 10), count), 10]
        assert len(edges) == count + 2
        assert all(b - a >= 2 for a, b in itertools.pairwise(edges))
