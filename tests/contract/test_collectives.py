"""Every operation that a strategy says it uses can be timed, over each runtime."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from collectives_ranks import sweep_on_ranks

from rankbench.matrix.catalog import load_catalog
from rankbench.rank.facts.collectives import FEWEST, REPEATS, SIZES
from rankbench.rank.strategies import find_strategy, runtime_of

pytestmark = pytest.mark.contract

STRATEGIES = load_catalog().strategies
BACKENDS = {"process_group": "gloo", "horovod": "gloo", "rpc": "tensorpipe"}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_who_has_several_ranks_says_how_they_exchange(strategy: str) -> None:
    alone = STRATEGIES[strategy].needs["ranks"] == "one"
    operations = find_strategy(strategy).operations
    assert alone == (not operations)
    for times in operations.values():
        assert times is None or times > 0


@pytest.mark.alone
@pytest.mark.parametrize(
    ("runtime", "ranks"),
    [
        ("process_group", 3),
        ("rpc", 2),
        pytest.param("horovod", 2, marks=pytest.mark.equipment),
    ],
)
def test_operations(tmp_path: Path, runtime: str, ranks: int) -> None:
    if runtime == "horovod" and importlib.util.find_spec("horovod") is None:
        pytest.skip("horovod is not installed: `make extras` builds it")
    operations = {
        operation
        for strategy in STRATEGIES
        if runtime_of(strategy) == runtime
        for operation in find_strategy(strategy).operations
    }
    assert operations
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
        # 16,000 times as many bytes take longer. Other work on the machine only adds
        # time, so the fastest calls are compared.
        assert min(points[0]["seconds"]) < min(points[-1]["seconds"])
