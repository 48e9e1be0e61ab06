"""The budget ends the launches of all cells before it is exceeded."""

from __future__ import annotations

from typing import Any

import pytest

from rankbench.record import Record, complete
from rankbench.stopping import LaunchHistory, brief, find_ended

pytestmark = pytest.mark.unit


def record(number: int, **changes: Any) -> Record:
    """A launch of ten seconds."""
    found: Record = {
        "status": "ok",
        "reason": None,
        "cause": None,
        "launch": number,
        "ranks": [{"window_s": 1.0}],
        "round": {"seed": 1, "number": number, "position": 1},
        "seconds": {"launch": 10.0},
    }
    return complete(found | changes)


def cell(wanted: int, launches: int, **changes: Any) -> LaunchHistory:
    records = [record(number + 1) for number in range(launches)]
    return LaunchHistory(wanted, 2, records, **changes)


def test_the_budget_ends_all_cells_before_it_is_exceeded():
    cells = {name: cell(6, 3) for name in "ab"}
    # Six launches of 10 s on two devices are 120; the next round takes 40.
    assert find_ended(cells, None) == find_ended(cells, 160.0) == {}
    assert find_ended(cells, 159.0) == {"a": 3, "b": 3}


def test_what_is_kept_of_a_record_costs_the_same():
    one = cell(6, 3)
    one.records = [brief(kept) for kept in one.records]
    assert find_ended({"a": one}, 80.0) == {}
    assert find_ended({"a": one}, 79.0) == {"a": 3}


def test_idle_devices_of_a_job_and_the_gate_are_paid_for():
    one = cell(6, 3, beside=[record(1, round=None)])
    assert one.cost(one.records[0]) == 20.0
    for launch in one.records:
        launch["round"]["devices"] = 8
    # Three launches, a gate on two devices, and the next launch.
    assert one.cost(one.records[0]) == 80.0
    assert find_ended({"a": one}, 340.0) == {}
    assert find_ended({"a": one}, 339.0) != {}


def test_a_cell_without_a_launch_waits_for_a_spent_budget_only():
    cells = {"a": cell(6, 3), "b": cell(6, 0)}
    assert find_ended(cells, 60 + 20.0) == {}
    assert find_ended(cells, 60 + 19.0)["b"] == 0


def test_complete_cells_do_not_count_for_the_next_round():
    assert find_ended({"a": cell(3, 3)}, 1.0) == {}
