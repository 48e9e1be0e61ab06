"""Ranks that exchange bytes by every operation of a runtime: imported by children."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
from ranks import start_ranks

from rankbench.environ import Place
from rankbench.rank.facts.collectives import sweep
from rankbench.rank.world import find_runtime


def sweep_on_ranks(
    folder: Path, runtime: str, backend: str, operations: list[str], ranks: int
) -> list[list[dict]]:
    """What each rank found, by rank."""
    start_ranks(_be_rank, (folder, runtime, backend, operations, ranks), ranks)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


def _be_rank(
    rank: int,
    folder: Path,
    runtime: str,
    backend: str,
    operations: list[str],
    ranks: int,
) -> None:
    torch.set_num_threads(1)
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo"}
    place = Place(rank=rank, size=ranks, local_rank=rank, local_size=ranks, node=0)
    found, cpu = find_runtime(runtime), torch.device("cpu")
    found.join(backend, place, f"file://{folder}/store", cpu)
    asked = dict.fromkeys(operations, 1.0)
    (folder / f"{rank}.json").write_text(json.dumps(sweep(asked, found, cpu)))
    found.leave()
