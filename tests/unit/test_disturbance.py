"""Which launches are disturbed, which are repeated, and what is a lack of cores."""

from __future__ import annotations

import re
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
    found: Record = {"status": "ok", "reason": None, "cause": None, "launch": number}
    found |= {"repeats": 2, "shape": make_shape(2).to_dict(), "samples": 1000}
    found |= {"ranks": ranks, "surroundings": [CALM], "seconds": {"launch": 10.0}}
    return complete(found | changes)


def in_round(number: int, turn: int, *, busy: bool = False, **changes: Any) -> Record:
    place = {"seed": 7, "number": turn, "position": 1}
    return record(number, round=place, surroundings=[BUSY if busy else CALM], **changes)


def other(count: int, *throttled: str) -> dict[str, Any]:
    """The state of a GPU before the launch. What it did meanwhile is the cell's own."""
    before = {"others": count, "throttled": [*throttled]}
    gpu = {"index": 3, "throttled": ["temperature (hardware)"], "before": before}
    return {"devices": [gpu]}


def on_host(**seen: float) -> dict[str, Any]:
    return {"surroundings": [make_surroundings(**seen)]}


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (on_host(), None),
        (on_host(foreign=0.049, steal=0.049, stopped=0.009), None),
        (on_host(foreign=0.05), "other programs.*node1"),
        (on_host(steal=0.2), "virtual machines.*node1"),
        (on_host(stopped=0.4), "suspended.*node1"),
        # Without a limit below the planned cores, others of the group have used it up.
        (on_host(throttled=0.5, quota=2.0), "quota.*node1"),
        # A quota that is always too small is not repaired by another launch.
        (on_host(throttled=0.5, quota=1.0), None),
        (other(0), None),
        (other(1), "3.*another process|another process.*3"),
        (other(0, "temperature (driver)"), "3.*temperature|temperature.*3"),
        # As of a link that was cut, and mended.
        ({"stall": 0.099}, None),
        ({"stall": 0.45}, "one step stood still for 45% of the window"),
        ({"surroundings": [], "devices": None}, None),
    ],
)
def test_what_disturbs(seen, words):
    """Jobs decide by what they keep of a record."""
    for one in (record(**seen), brief(record(**seen))):
        found = disturbances(one)
        assert len(found) == (words is not None)
        assert words is None or re.search(words, found[0])


def test_records_that_know_nothing_are_not_disturbed():
    assert disturbances(complete({"status": "ok"})) == []
    assert not lacks_cores(complete({"status": "ok"}))


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
    shape = make_shape(2, cores_per_rank=cores_of_rank).to_dict()
    one = record(shape=shape, **on_host(**seen))
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
    """One that is busy half of the time is repeated as often as it takes."""
    for period, wanted in ((1, 8 + 2), (2, None)):
        launches: list[Record] = []
        while not judge(launches, 8).complete:
            number, turn = len(launches) + 1, len(counting(launches)) + 1
            launches.append(in_round(number, turn, busy=number % period == 1 % period))
        assert wanted in (None, len(launches))
    assert not any(map(disturbances, counting(launches)))


def test_launches_without_rounds_are_repeated_too():
    busy = record(1, surroundings=[BUSY])
    records = [busy, busy | {"launch": 2}, busy | {"launch": 3}, record(4)]
    assert numbers(repeated(records)) == [1, 2]
    assert numbers(counting(records)) == [3, 4]


def test_failures_are_not_repeated():
    lost = in_round(1, 1, busy=True, status="timeout", reason="600 s")
    assert counting([lost]) == [lost]
    assert len(repeated([brief(in_round(1, 1, busy=True))])) == 1


def test_repeated_launches_cost_and_count_as_one():
    records = [in_round(1, 1, busy=True), in_round(2, 1)]
    cell = LaunchHistory(2, 2, records)
    # Each took 10 s of 2 devices, and so will the next.
    assert find_ended({"a": cell}, 60.0) == {}
    assert find_ended({"a": cell}, 59.0) == {"a": 1}


def seen(cpus: list[int], busy: list[float], own: float, **more: Any) -> dict[str, Any]:
    """What a rank has seen in 10 s."""
    found = {"seconds": 10.0, "own": own, "cpus": cpus, "busy": busy}
    found |= {"steal": [0.0] * len(cpus), "periods": 0, "throttled": 0, "quota": None}
    return {**found, "stopped": 0.0, **more}


def merged(*ranks: dict[str, Any] | None) -> dict[str, Any]:
    reports = [{"rank": {"host": "node1"}, "surroundings": one} for one in ranks]
    (host,) = merge_surroundings(reports)
    return host


ON_0, ON_1, ON_BOTH = ([0], [10.0]), ([1], [10.0]), ([0, 1], [10, 10])


@pytest.mark.parametrize(
    ("ranks", "foreign"),
    [
        ([seen(*ON_0, 9.9)], 0.01),
        # The rank that loses most: all others wait for it.
        ([seen(*ON_0, 9.9), seen(*ON_1, 6.0)], 0.4),
        # Ranks that share CPUs take them from each other, directly or not.
        ([seen(*ON_BOTH, 9.0), seen(*ON_BOTH, 11.0)], 0),
        ([seen(*ON_0, 5.0), seen(*ON_1, 5.0), seen(*ON_BOTH, 9.0)], 0.05),
        # A clock tick too many is nothing.
        ([seen(*ON_0, 10.1)], 0),
    ],
)
def test_what_ranks_have_not_used_of_their_cores_was_foreign(ranks, foreign):
    assert merged(*ranks)["foreign"] == pytest.approx(foreign)


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
