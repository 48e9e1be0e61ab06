"""Which cores a rank gets, on machines that are made up."""

from __future__ import annotations

import os
from itertools import combinations
from pathlib import Path

import pytest

from rankbench.cores import physical_cores
from rankbench.rank.joining.placement import choose_cores

pytestmark = pytest.mark.unit


@pytest.fixture
def system(tmp_path: Path) -> Path:
    """Two packages of two cores of two threads; CPU n and n + 4 share a core."""
    for cpu in range(8):
        topology = tmp_path / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(f"{cpu % 4 // 2}\n")
        (topology / "core_id").write_text(f"{cpu % 2}\n")
    return tmp_path


@pytest.mark.parametrize(
    ("allowed", "cores"),
    [
        (set(range(8)), [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ({5, 1, 0}, [[0], [1, 5]]),
        ({7, 6}, [[6], [7]]),
    ],
)
def test_threads_of_a_core_are_one(
    system: Path, allowed: set[int], cores: list[list[int]]
) -> None:
    assert physical_cores(allowed, system) == cores


def test_where_nothing_is_told_each_cpu_is_a_core(tmp_path: Path) -> None:
    assert physical_cores({3, 1}, tmp_path) == [[1], [3]]


def test_without_cpus_it_is_the_own_affinity() -> None:
    found = [cpu for core in physical_cores() for cpu in core]
    assert sorted(found) == sorted(os.sched_getaffinity(0))


@pytest.mark.parametrize(("ranks", "per_rank"), [(1, 4), (2, 2), (4, 1), (3, 1)])
def test_ranks_share_no_core(system: Path, ranks: int, per_rank: int) -> None:
    cores = physical_cores(set(range(8)), system)
    chosen = [choose_cores(rank, per_rank, cores) for rank in range(ranks)]
    cpus = [{cpu for core in mine for cpu in core} for mine in chosen]
    assert all(len(mine) == per_rank for mine in chosen)
    assert not any(one & two for one, two in combinations(cpus, 2))


@pytest.mark.parametrize(
    ("rank", "per_rank", "chosen"),
    [(3, 1, [[0]]), (1, 2, [[2], [0]]), (4, 1, [[1]]), (0, 4, [[0], [1], [2], [0]])],
)
def test_more_ranks_than_cores_share_them_in_turn(
    rank: int, per_rank: int, chosen: list[list[int]]
) -> None:
    assert choose_cores(rank, per_rank, [[0], [1], [2]]) == chosen
