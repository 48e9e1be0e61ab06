"""Every operation that a strategy says it uses can be timed, over each runtime."""

from __future__ import annotations

import importlib.util

import pytest
from collectives_ranks import sweep_on_ranks

from rankbench.rank.facts.collectives import FEWEST, REPEATS, SIZES

pytestmark = pytest.mark.contract

# Those that strategies declare (tests/contract/test_fake_ranks.py).
OPERATIONS = {
    "process_group": [
        *("all_gather", "all_reduce", "broadcast", "reduce_scatter", "send_recv"),
    ],
    "horovod": ["all_reduce"],
    "rpc": ["send_recv"],
}
BACKENDS = {"process_group": "gloo", "horovod": "gloo", "rpc": "tensorpipe"}


@pytest.mark.parametrize(
    ("runtime", "ranks"),
    [
        ("process_group", 3),
        ("rpc", 2),
        pytest.param("horovod", 2, marks=pytest.mark.equipment),
    ],
)
def test_operations(tmp_path, runtime, ranks):
    if runtime == "horovod" and importlib.util.find_spec("horovod") is None:
        pytest.skip("horovod is not installed: `make extras` builds it")
    operations = set(OPERATIONS[runtime])
    found = sweep_on_ranks(
        tmp_path, runtime, BACKENDS[runtime], sorted(operations), ranks
    )
    for of_rank in found:
        assert {point["operation"] for point in of_rank} == operations
        for point in of_rank:
            assert FEWEST <= len(point["seconds"]) <= REPEATS
            assert min(point["seconds"]) > 0
    first, *others = found
    for other in others:
        # All ranks make the same calls equally often.
        assert [(p["operation"], p["bytes"], len(p["seconds"])) for p in first] == [
            (p["operation"], p["bytes"], len(p["seconds"])) for p in other
        ]
    for operation in operations:
        points = [p for p in first if p["operation"] == operation]
        assert [p["bytes"] for p in points] == list(SIZES["cpu"][: len(points)])
        # No socket moves 100 GB/s; a call that returns before its end seems to. What a
        # small call takes says nothing here: Horovod's waits for the next cycle.
        assert min(points[-1]["seconds"]) > points[-1]["bytes"] / 100e9


def test_a_sweep_runs_within_the_group_of_its_operation(tmp_path):
    """Ranks 0 and 2 together, 1 and 3 together: operations of 2 ranks, not of 4."""
    found = sweep_on_ranks(
        tmp_path, "process_group", "gloo", OPERATIONS["process_group"], 4, apart=2
    )
    for of_rank in found:
        assert {point["ranks"] for point in of_rank} == {2}
        assert {point["operation"] for point in of_rank} == {
            *OPERATIONS["process_group"]
        }


def test_operations_that_hardly_matter_are_not_timed(tmp_path):
    found = sweep_on_ranks(
        tmp_path, "process_group", "gloo", ["all_reduce", "broadcast"], 2, few=True
    )
    assert {point["operation"] for point in found[0]} == {"all_reduce"}
