"""Ranks that exchange bytes by every operation of a runtime: imported by children."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
from ranks import start_ranks
from torch import distributed

from rankbench.environ import Place
from rankbench.rank.facts.collectives import sweep
from rankbench.rank.strategies.base import Operation, World
from rankbench.rank.world.devices import find_runtime


def sweep_on_ranks(
    folder: Path,
    runtime: str,
    backend: str,
    operations: list[str],
    ranks: int,
    *,
    apart: int = 1,
    few: bool = False,
) -> list[list[dict]]:
    """What each rank found, by rank.

    Args:
        apart: distance of the ranks of a group; 1 takes all ranks.
        few: whether all operations but the first move few bytes.
    """
    arguments = (folder, runtime, backend, operations, ranks, apart, few)
    start_ranks(_be_rank, arguments, ranks)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


def _be_rank(
    rank: int,
    folder: Path,
    runtime: str,
    backend: str,
    operations: list[str],
    ranks: int,
    apart: int,
    few: bool,
) -> None:
    torch.set_num_threads(1)
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo"}
    place = Place(rank=rank, size=ranks, local_rank=rank, local_size=ranks, node=0)
    found, cpu = find_runtime(runtime), torch.device("cpu")
    found.join(backend, place, f"file://{folder}/store", cpu)
    group = None
    if apart > 1:
        groups = [distributed.new_group(range(i, ranks, apart)) for i in range(apart)]
        group = groups[rank % apart]
    asked = [
        Operation(name, 1000.0 if not number or not few else 1.0, group=group)
        for number, name in enumerate(operations)
    ]
    world = World(rank, ranks, rank, cpu, (cpu,), backend, 1)
    (folder / f"{rank}.json").write_text(json.dumps(sweep(asked, found, world, 1)))
    found.leave()
