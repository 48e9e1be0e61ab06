"""Which launches are disturbed, which are repeated, and what is a lack of cores."""

from __future__ import annotations

from typing import Any

import pytest

from factories import make_shape, make_surroundings
from rankbench.launch.process.reports import merge_surroundings
from rankbench.record import (
    Record,
    complete,
    counting,
    disturbances,
    judge,
    lacks_cores,
    repeated,
)
from rankbench.stopping import LaunchHistory, brief, find_ended

pytestmark = pytest.mark.unit

CALM, BUSY = make_surroundings(), make_surroundings(foreign=0.3)


def record(number: int = 1, **changes: Any) -> Record:
    """A launch on two ranks of one core each."""
    ranks = [
        {"rank": rank, "host": "node1", "window_s": 1.0, "cores": [rank]}
        for rank in range(2)
    ]
    found: Record = {
        "status": "ok",
        "reason": None,
        "cause": None,
        "launch": number,
        "repeats": 2,
        "shape": make_shape(2).to_dict(),
        "samples": 1000,
        "ranks": ranks,
        "surroundings": [CALM],
        "seconds": {"launch": 10.0},
    }
    return complete(found | changes)


def in_round(number: int, turn: int, *, busy: bool = False, **changes: Any) -> Record:
    return record(
        number,
        round={"seed": 7, "number": turn, "position": 1},
        surroundings=[BUSY if busy else CALM],
        **changes,
    )


def test_a_step_that_stands_out_is_a_disturbance():
    """As of a link that was cut, and mended."""
    assert disturbances(record(stall=0.099)) == []
    (said,) = disturbances(brief(record(stall=0.45)))
    assert said == "one step stood still for 45% of the window"


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ({}, None),
        ({"foreign": 0.049, "steal": 0.049, "stopped": 0.009}, None),
        ({"foreign": 0.05}, "other programs"),
        ({"steal": 0.2}, "virtual machines"),
        ({"stopped": 0.4}, "suspended"),
        # Without a limit below the planned cores, others of the group have used it up.
        ({"throttled": 0.5, "quota": 2.0}, "quota"),
        # A quota that is always too small is not repaired by another launch.
        ({"throttled": 0.5, "quota": 1.0}, None),
    ],
)
def test_what_others_did_on_the_host(seen, words):
    found = disturbances(record(surroundings=[make_surroundings(**seen)]))
    if words is None:
        assert found == []
    else:
        (said,) = found
        assert words in said
        assert "node1" in said


@pytest.mark.parametrize(
    ("before", "words"),
    [
        ({"others": 0, "throttled": []}, None),
        ({"others": 1, "throttled": []}, "another process"),
        ({"others": 0, "throttled": ["temperature (driver)"]}, "temperature"),
    ],
)
def test_the_state_of_a_gpu_before_the_launch(before, words):
    # What it did during the launch is the cell's own.
    device = {"index": 3, "throttled": ["temperature (hardware)"], "before": before}
    found = disturbances(record(devices=[device]))
    assert (words is None) == (found == [])
    assert all(words in said and "3" in said for said in found)


def test_records_that_know_nothing_are_not_disturbed():
    assert disturbances(complete({"status": "ok"})) == []
    assert not lacks_cores(complete({"status": "ok"}))
    assert disturbances(record(surroundings=[], devices=None)) == []


@pytest.mark.parametrize(
    ("cores", "cores_of_rank", "seen", "lacks"),
    [
        ([[0], [1]], 1, {}, False),
        # `taskset -c 0`, or a Slurm host that gives one core.
        ([[0], [0]], 1, {}, True),
        ([[0, 1], [1, 2]], 2, {}, True),
        ([[0], [1]], 2, {}, True),
        # A process that drives GPUs may use all cores of its host.
        ([[0, 1], [0, 1]], 0, {}, False),
        ([[0], [1]], 1, {"quota": 1.0, "throttled": 0.45}, True),
        ([[0], [1]], 1, {"quota": 1.0, "throttled": 0.0}, False),
        ([[0], [1]], 1, {"quota": 2.0, "throttled": 0.45}, False),
    ],
)
def test_lack_of_cores(cores, cores_of_rank, seen, *, lacks):
    one = record(
        shape=make_shape(2, cores_per_rank=cores_of_rank).to_dict(),
        surroundings=[make_surroundings(**seen)],
    )
    for rank, own in zip(one["ranks"], cores, strict=True):
        rank["cores"] = own
    assert lacks_cores(one) == lacks


def test_the_same_cpus_on_two_hosts_are_not_shared():
    one = record()
    for rank in one["ranks"]:
        rank |= {"cores": [0], "host": f"node{rank['rank']}"}
    assert not lacks_cores(one)


def numbers(records: list[Record]) -> list[int]:
    return [one["launch"] for one in records]


def test_a_disturbed_launch_is_replaced_within_its_round():
    records = [in_round(1, 1), in_round(2, 2, busy=True), in_round(3, 2)]
    assert numbers(repeated(records)) == [2]
    assert numbers(counting(records)) == [1, 3]
    # Until there is another one, the cell lacks a launch.
    assert not judge(records[:2], 2).complete
    assert judge(records, 2).complete
    # Without the rule, all launches count.
    assert counting([one | {"repeats": 0} for one in records]) != counting(records)


def test_the_third_disturbed_launch_of_a_round_counts():
    calm = [in_round(number, number) for number in (1, 2, 3, 4)]
    busy = [in_round(number, 5, busy=True) for number in (5, 6, 7)]
    assert numbers(repeated([*calm, *busy])) == [5, 6]
    assert judge([*calm, *busy], 5).complete


def test_a_machine_that_is_always_busy_does_not_triple_a_run():
    launches: list[Record] = []
    while not judge(launches, 8).complete:
        number = len(launches) + 1
        turn = len(counting(launches)) + 1
        launches.append(in_round(number, turn, busy=True))
    assert len(launches) == 8 + 2
    # One that is busy half of the time is repeated as often as it takes.
    launches = []
    while not judge(launches, 8).complete:
        number = len(launches) + 1
        turn = len(counting(launches)) + 1
        launches.append(in_round(number, turn, busy=number % 2 == 1))
    assert not any(map(disturbances, counting(launches)))


def test_launches_without_rounds_are_repeated_too():
    busy = record(1, surroundings=[BUSY])
    records = [busy, busy | {"launch": 2}, busy | {"launch": 3}, record(4)]
    assert numbers(repeated(records)) == [1, 2]
    assert numbers(counting(records)) == [3, 4]


def test_failures_are_not_repeated():
    lost = in_round(1, 1, busy=True, status="timeout", reason="600 s")
    assert counting([lost]) == [lost]


def test_jobs_decide_by_what_they_keep_of_a_record():
    device = {"index": 0, "before": {"others": 2, "throttled": []}}
    for one in (in_round(1, 1, busy=True), record(1, devices=[device])):
        assert disturbances(one)
        assert disturbances(brief(one)) == disturbances(one)
        assert len(repeated([brief(one)])) == 1


def test_repeated_launches_cost_and_count_as_one():
    records = [in_round(1, 1, busy=True), in_round(2, 1)]
    cell = LaunchHistory(2, 2, records)
    # Each took 10 s of 2 devices, and so will the next.
    assert find_ended({"a": cell}, 60.0) == {}
    assert find_ended({"a": cell}, 59.0) == {"a": 1}


def seen(cpus: list[int], busy: list[float], own: float, **more: Any) -> dict[str, Any]:
    """What a rank has seen in 10 s."""
    return {
        "seconds": 10.0,
        "own": own,
        "cpus": cpus,
        "busy": busy,
        "steal": [0.0] * len(cpus),
        "periods": 0,
        "throttled": 0,
        "quota": None,
        "stopped": 0.0,
    } | more


def merged(*ranks: dict[str, Any] | None) -> dict[str, Any]:
    reports = [{"rank": {"host": "node1"}, "surroundings": one} for one in ranks]
    (host,) = merge_surroundings(reports)
    return host


def test_what_ranks_have_not_used_of_their_cores_was_foreign():
    calm = seen([0], [10.0], 9.9)
    assert merged(calm)["foreign"] == pytest.approx(0.01)
    # The rank that loses most: all others wait for it.
    assert merged(calm, seen([1], [10.0], 6.0))["foreign"] == pytest.approx(0.4)
    # Ranks that share CPUs take them from each other, directly or not.
    both = merged(seen([0, 1], [10, 10], 9.0), seen([0, 1], [10, 10], 11.0))
    assert both["foreign"] == 0
    chain = merged(
        seen([0], [10.0], 5.0), seen([1], [10.0], 5.0), seen([0, 1], [10, 10], 9.0)
    )
    assert chain["foreign"] == pytest.approx(0.05)
    # A clock tick too many is nothing.
    assert merged(seen([0], [10.0], 10.1))["foreign"] == 0


def test_shares_of_a_host_are_those_of_its_worst_rank():
    found = merged(
        seen([0], [10.0], 10.0, steal=[2.0], periods=100, throttled=45, quota=1.5),
        seen([1], [10.0], 10.0, stopped=4.0),
        None,
    )
    assert found["steal"] == pytest.approx(0.2)
    assert (found["throttled"], found["quota"]) == (0.45, 1.5)
    assert found["stopped"] == pytest.approx(0.4)
    assert merge_surroundings([{"rank": {"host": "a"}, "surroundings": None}]) == []
