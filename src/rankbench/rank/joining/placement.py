"""Chooses the CPU cores of each rank: disjoint sets within the given affinity."""

from __future__ import annotations

import os


def choose_cores(
    local_rank: int, cores_per_rank: int, cores: list[list[int]]
) -> list[list[int]]:
    """The cores of one rank; if there are not enough, ranks share them in turn."""
    first = local_rank * cores_per_rank
    return [cores[(first + i) % len(cores)] for i in range(cores_per_rank)]


def pin(cores: list[list[int]]) -> None:
    """Bind this process and its existing threads to these cores."""
    cpus = {cpu for core in cores for cpu in core}
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), cpus)
