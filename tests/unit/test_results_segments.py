"""Segments of a series of runs: false alarms, what is found, and what is no change."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rankbench.results.history.segments import MIN_RUNS, find_breaks, without_bad_runs

pytestmark = pytest.mark.unit


def noise(seed: int, runs: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.02, runs)


def places_of(values: np.ndarray, series: int = 1) -> list[int]:
    """Where the level changes; each bracket must exclude 1 on its side."""
    places, ratios = find_breaks(without_bad_runs(values), series)
    for ratio in ratios:
        assert not ratio.may_be(1.0)
        assert ratio.interval is not None
    edges = [0, *places, len(values)]
    assert all(b - a >= MIN_RUNS for a, b in itertools.pairwise(edges))
    return list(places)


@pytest.mark.parametrize("runs", [8, 20, 60])
def test_unchanged_series_seldom_show_a_change(runs):
    found = sum(bool(places_of(noise(seed, runs))) for seed in range(400))
    # Binomial: 400 x 5 % is 20, and 34 are seen once in a thousand times.
    assert found < 34


def test_changes_of_many_series_hold_together():
    stores = 60
    found = sum(
        any(places_of(noise(100 * store + seed, 20), 20) for seed in range(20))
        for store in range(stores)
    )
    assert found <= 9  # seen once in a thousand times at 5 %


def test_a_step_is_found_at_its_run():
    values = noise(1, 40)
    values[25:] -= 0.08
    (place,) = places_of(values)
    assert abs(place - 25) <= 1
    _, (ratio,) = find_breaks(without_bad_runs(values))
    assert ratio.may_be(np.exp(-0.08))


def test_a_large_new_step_is_found_after_three_runs():
    found = 0
    for seed in range(100):
        values = noise(seed, 33)
        values[30:] -= 4 * 0.02
        found += bool(places_of(values))
    assert found >= 80


def test_a_step_that_was_undone_is_two_changes():
    values = noise(2, 100)
    values[50:58] -= 0.12
    assert places_of(values) == [50, 58]


def test_one_bad_run_is_no_change_and_hides_none():
    values = noise(3, 40)
    values[10] -= 0.5
    assert places_of(values) == []
    values[25:] -= 0.08
    (place,) = places_of(values)
    assert abs(place - 25) <= 1


def test_equal_values_have_no_change():
    assert places_of(np.full(20, 5.0)) == []


def test_two_exact_levels_are_one_change():
    assert places_of(np.repeat([5.0, 4.0], 10)) == [10]
