"""The rules that end launches: what they see, when they look, what they decide."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy import stats

from factories import make_cell
from rankbench.record import Record
from rankbench.stopping import (
    LaunchHistory,
    Rule,
    brief,
    cost,
    find_enough,
    half_width,
    rate,
)

pytestmark = pytest.mark.unit

TWO = make_cell(topology="1x2")
UNTIL, BEST = Rule(40, "until", 0.03), Rule(40, "best", 0.03)


def record(value: float | None, number: int = 1, **changes: Any) -> Record:
    """A launch of so many samples/s; None for one that crashed."""
    found: Record = {
        "status": "crashed" if value is None else "ok",
        "reason": "it crashed" if value is None else None,
        "cause": None,
        "launch": number,
        "samples": 1000 * (value or 0.0),
        "ranks": [] if value is None else [{"window_s": 500.0}, {"window_s": 1000.0}],
        "round": {"seed": 1, "number": number, "position": 1},
        "seconds": {"launch": 10.0},
    }
    return found | changes


def cell(rule: Rule, values: Sequence[float | None], **changes: Any) -> LaunchHistory:
    records = [record(value, number) for number, value in enumerate(values, start=1)]
    return LaunchHistory(rule, TWO, **{"records": records, **changes})


def around(center: float, scatter: float, count: int, shift: int = 0) -> list[float]:
    """Values that alternate around a center, always the same."""
    steps = [math.sin(12.9898 * (number + shift)) for number in range(1, count + 1)]
    return [center * (1 + scatter * step) for step in steps]


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        (6, Rule(6)),
        ({"until": 0.03, "at_most": 40}, UNTIL),
        ({"best": 0.03, "at_most": 40}, BEST),
    ],
)
def test_a_rule_survives_json(value, rule):
    assert Rule.read(value) == rule
    assert rule.to_json() == value


@pytest.mark.parametrize("value", [{"at_most": 40}, {"until": 0.1, "best": 0.1}])
def test_what_is_no_rule_is_refused(value):
    with pytest.raises(ValueError, match="give until or best"):
        Rule.read(value)


def test_the_looks_become_rarer():
    assert UNTIL.looks == [8, 12, 18, 27, 40]
    assert Rule(8, "until", 0.1).looks == [8]
    assert Rule(6).looks == [6]


@pytest.mark.parametrize("count", [6, 8, 12, 40])
def test_the_width_is_that_of_students_interval(count):
    values = np.exp(0.03 * np.random.default_rng(count).normal(size=count)).tolist()
    ends = stats.ttest_1samp(np.log(values), 0).confidence_interval(0.95)
    width = half_width(values)
    assert width == pytest.approx(math.exp((ends.high - ends.low) / 2) - 1, rel=0.03)
    assert half_width(values[:5]) is None


def test_a_rate_is_that_of_the_slowest_rank():
    assert rate(record(7.0)) == 7.0
    assert rate(record(None)) is None
    assert rate(record(7.0) | {"ranks": []}) is None


def test_what_is_kept_of_a_record_decides_the_same():
    values = around(100, 0.02, 40)
    full = cell(UNTIL, values)
    short = cell(UNTIL, values)
    short.records = [brief(one | {"hosts": ["much more"]}) for one in full.records]
    assert "hosts" not in short.records[0]
    assert find_enough({"a": full}) == find_enough({"a": short})


def test_nothing_is_said_of_a_fixed_number():
    assert find_enough({"a": cell(Rule(6), around(100, 0.01, 6))}) == {}


@pytest.mark.parametrize("count", [1, 7, 9, 11])
def test_a_rule_looks_after_8_12_18_and_so_on(count):
    wide = cell(UNTIL, around(100, 0.12, count))
    quiet = cell(UNTIL, around(100, 0.01, count))
    found = find_enough({"wide": wide, "quiet": quiet})
    assert "wide" not in found
    assert ("quiet" in found) == (count >= 8)
    if count >= 8:
        assert found["quiet"].after == 8


def test_until_ends_at_the_first_look_that_is_narrow():
    values = [*around(100, 0.12, 8), *around(100, 0.001, 32)]
    (found,) = find_enough({"a": cell(UNTIL, values)}).values()
    assert found.after in UNTIL.looks
    width = half_width(values[: found.after], 0.99)
    assert width is not None
    assert width <= 0.03
    assert found.why == f"reached {100 * width:.2g} %"
    before = UNTIL.looks[UNTIL.looks.index(found.after) - 1]
    wider = half_width(values[:before], 0.99)
    assert wider is not None
    assert wider > 0.03


def test_until_gives_up_what_cannot_become_narrow():
    (found,) = find_enough({"a": cell(UNTIL, around(100, 0.5, 40))}).values()
    assert found.after == 8
    assert found.why.endswith("too wide to reach")


def test_until_ends_at_most_after_so_many():
    (found,) = find_enough({"a": cell(UNTIL, around(100, 0.14, 40))}).values()
    assert found.after == 40
    assert found.why.startswith("at 40: ")


def test_a_failure_ends_until_at_the_next_look():
    values: list[float | None] = [*around(100, 0.2, 40)]
    values[3] = None
    (found,) = find_enough({"a": cell(UNTIL, values)}).values()
    assert found == (8, "after 8: 1 failed")


def rivals(speeds: Sequence[float], count: int, scatter: float = 0.02) -> dict:
    rng = np.random.default_rng(3)
    rounds = np.exp(0.3 * rng.normal(size=count))  # the machine differs in each round
    return {
        str(place): cell(
            BEST, list(speed * rounds * np.exp(scatter * rng.normal(size=count)))
        )
        for place, speed in enumerate(speeds)
    }


def test_best_drops_losers_and_ends_with_the_fastest():
    found = find_enough(rivals([1.0, 0.7, 0.5], 8))
    assert found["0"].why.startswith("best after 8: at least 1 of every other")
    assert found["1"].why.startswith("dropped after 8: at most 0.7")
    assert found["2"].why.startswith("dropped after 8: at most 0.5")


def test_best_goes_on_with_what_may_be_the_fastest():
    found = find_enough(rivals([1.0, 0.99, 0.5], 8, scatter=0.05))
    assert found.keys() == {"2"}
    found = find_enough(rivals([1.0, 0.99, 0.5], 40, scatter=0.05))
    assert found.keys() == {"0", "1", "2"}


def test_best_waits_for_all_that_are_left():
    cells = rivals([1.0, 0.7, 0.5], 8)
    cells["1"].records.pop()
    assert find_enough(cells) == {}


def test_best_needs_launches_of_the_same_rounds():
    cells = rivals([1.0, 0.5], 40)
    for one in cells["1"].records:
        one["round"]["seed"] = 2
    assert {one.why for one in find_enough(cells).values()} == {"at 40: not decided"}


def test_best_compares_within_a_workload_only():
    cells = rivals([1.0, 0.5], 8)
    cells["1"].cell = make_cell(topology="1x2", batch_size=8)
    found = find_enough(cells)
    assert {one.why for one in found.values()} == {"best after 8"}


def test_the_base_of_speedups_is_never_dropped():
    cells = rivals([1.0, 0.99, 0.3], 12, scatter=0.05)
    cells["2"].cell = make_cell(strategy="single", topology="1x1")
    assert "2" not in find_enough(cells)


def test_a_cell_that_fails_keeps_nobody_waiting():
    cells = rivals([1.0, 0.5], 8)
    cells["broken"] = cell(BEST, [None, None])
    cells["refused"] = cell(BEST, [], beside=[record(None) | {"status": "mismatch"}])
    assert find_enough(cells).keys() == {"0", "1"}


def test_the_budget_ends_all_cells_before_it_is_exceeded():
    cells = {name: cell(Rule(6), around(100, 0.1, 3)) for name in "ab"}
    # Six launches of 10 s on two devices are 120; the next round takes 40.
    assert find_enough(cells, budget=160.0) == {}
    found = find_enough(cells, budget=159.0)
    assert {one.why for one in found.values()} == {"budget: after 3 of 6"}
    assert {one.after for one in found.values()} == {3}


def test_idle_devices_of_a_job_and_the_gate_are_paid_for():
    one = cell(Rule(6), around(100, 0.1, 3), beside=[record(1.0)])
    assert cost(one, one.records[0]) == 20.0
    for launch in one.records:
        launch["round"]["devices"] = 8
    # Three launches, a gate on two devices, and the next launch.
    assert cost(one, one.records[0]) == 80.0
    assert find_enough({"a": one}, budget=340.0) == {}
    assert find_enough({"a": one}, budget=339.0) != {}


def test_a_cell_without_a_launch_waits_for_a_spent_budget_only():
    cells = {"a": cell(Rule(6), around(100, 0.1, 3)), "b": cell(Rule(6), [])}
    assert find_enough(cells, budget=60 + 20.0) == {}
    found = find_enough(cells, budget=60 + 19.0)
    assert found["b"] == (0, "budget: after 0 of 6")


def test_complete_cells_do_not_count_for_the_next_round():
    cells = {"a": cell(Rule(3), around(100, 0.1, 3))}
    assert find_enough(cells, budget=1.0) == {}


@pytest.mark.parametrize("shape", ["normal", "log-normal", "bimodal", "heavy tail"])
def test_the_interval_at_the_stop_covers_the_mean(shape):
    """`benchmarks/stopping.py` shows it for more cells and other scatters."""
    rng = np.random.default_rng(5)
    draws = {
        "normal": lambda: rng.normal(size=40),
        "log-normal": lambda: np.exp(0.5 * rng.normal(size=40)) - math.exp(0.125),
        "bimodal": lambda: (
            np.where(rng.random(40) < 0.5, -1, 1) * rng.uniform(0, 2, 40)
        ),
        "heavy tail": lambda: rng.standard_t(3, size=40),
    }
    hits, cells = 0, 1000
    for scatter in itertools.islice(itertools.cycle((0.01, 0.02, 0.04)), cells):
        values = list(np.exp(scatter * draws[shape]()))
        enough = find_enough({"a": cell(UNTIL, values)})["a"]
        used = np.log(values[: enough.after])
        hits += abs(used.mean()) <= math.log1p(half_width(np.exp(used), 0.99) or 0)
    assert hits / cells >= 0.945
