"""The CPUs of a rank on simulated machines."""

from __future__ import annotations

import os
from itertools import combinations
from pathlib import Path

import pytest

from rankbench.environ import choose_cores, physical_cores
from rankbench.rank.world.devices import bind_near

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
def test_threads_of_a_core_are_one(system, allowed, cores):
    assert physical_cores(allowed, system) == cores


def test_without_facts_each_cpu_is_a_core_of_the_own_affinity(tmp_path):
    assert physical_cores({3, 1}, tmp_path) == [[1], [3]]
    found = [cpu for core in physical_cores() for cpu in core]
    assert sorted(found) == sorted(os.sched_getaffinity(0))


@pytest.mark.parametrize(("ranks", "per_rank"), [(1, 4), (2, 2), (4, 1), (3, 1)])
def test_ranks_share_no_core(system, ranks, per_rank):
    cores = physical_cores(set(range(8)), system)
    chosen = [choose_cores(rank, per_rank, cores) for rank in range(ranks)]
    cpus = [{cpu for core in mine for cpu in core} for mine in chosen]
    assert all(len(mine) == per_rank for mine in chosen)
    assert not any(one & two for one, two in combinations(cpus, 2))


@pytest.fixture
def pci(tmp_path: Path) -> Path:
    """GPUs next to the first and the second half of 8 CPUs, and one next to none."""
    for name, near in (("1b", "0-2,3"), ("9c", "4-7"), ("ff", "")):
        folder = tmp_path / f"0000:{name}:00.0"
        folder.mkdir()
        (folder / "local_cpulist").write_text(f"{near}\n")
    return tmp_path


@pytest.mark.parametrize(
    ("gpus", "may_use", "bound"),
    [
        (["00:1b:00"], range(8), {0, 1, 2, 3}),
        (["00:1b:00", "00:9c:00"], range(8), set(range(8))),
        (["00:9c:00"], {2, 3, 4}, {4}),
        # None is near, or the kernel does not tell: all stay.
        (["00:9c:00"], {0, 1}, None),
        (["00:ff:00"], range(8), None),
        (["00:33:00"], range(8), None),
        ([None], range(8), None),
        ([], range(8), None),
    ],
)
def test_a_rank_stays_on_the_cpus_next_to_its_gpus(
    pci, monkeypatch, gpus, may_use, bound
):
    bindings: set[frozenset[int]] = set()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(may_use))
    monkeypatch.setattr(
        os, "sched_setaffinity", lambda _, cpus: bindings.add(frozenset(cpus))
    )
    bind_near(gpus, pci)
    assert bindings == ({frozenset(bound)} if bound else set())


@pytest.mark.parametrize(
    ("rank", "per_rank", "chosen"),
    [(3, 1, [[0]]), (1, 2, [[2], [0]]), (4, 1, [[1]]), (0, 4, [[0], [1], [2], [0]])],
)
def test_more_ranks_than_cores_share_them_in_turn(rank, per_rank, chosen):
    assert choose_cores(rank, per_rank, [[0], [1], [2]]) == chosen
