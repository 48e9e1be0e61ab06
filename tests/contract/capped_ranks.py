"""Ranks that may use little memory, for the contract tests: imported by children."""

from __future__ import annotations

import ctypes
import os
import re
import resource
from pathlib import Path
from typing import Any

import torch
from ranks import start_ranks

from factories import make_cell
from rankbench.environ import Place
from rankbench.rank import models
from rankbench.rank.purposes.setup import set_up_strategy
from rankbench.rank.strategies import find_strategy
from rankbench.rank.strategies.base import World
from rankbench.rank.world import process_group

SIZES = {"vocabulary": 64, "context": 16}
DECODER = {"layers": 24, "width": 512, "heads": 8}
# Of a block: four linear layers of attention, and two of four times the size.
BLOCK = 4 * 12 * DECODER["width"] ** 2
STEPS = 2


def train_under_caps(
    folder: Path, strategy: str, ranks: int, *, caps: tuple[int, int], **options: Any
) -> None:
    """Train a decoder on ranks that may use so much memory.

    Args:
        caps: bytes, in set-up and in steps.
    """
    start_ranks(_be_rank, (folder, strategy, ranks, caps, options), ranks)


def _be_rank(
    rank: int,
    folder: Path,
    strategy: str,
    ranks: int,
    caps: tuple[int, int],
    options: dict[str, Any],
) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    # Memory that is freed returns to the system at once, whatever its size.
    ctypes.CDLL(None).mallopt(-3, 2**16)
    cpu = torch.device("cpu")
    place = Place(rank=rank, size=ranks, local_rank=rank, local_size=ranks, node=0)
    process_group.join("gloo", place, f"file://{folder}/store", cpu)
    world = World(rank, ranks, rank, cpu, (cpu,), "gloo", 4)
    declared = find_strategy(strategy).options
    chosen = {name: rule["default"] for name, rule in declared.items()} | options
    cell = make_cell(
        strategy=strategy, options=chosen, optimizer="sgd", momentum=0.0, model="gpt"
    )
    blueprint = models.Blueprint(
        lambda: models.build("gpt", **SIZES, options=DECODER), seed=0
    )
    begin = _data()
    _cap(begin + caps[0])
    trained = set_up_strategy(cell, world, blueprint, replica_ranks=ranks)
    _cap(begin + caps[1])
    ids = torch.zeros(4, SIZES["context"], dtype=torch.int64)
    for _ in range(STEPS):
        trained.step((ids, ids), lambda phase: None)
    process_group.leave()


def _data() -> int:
    """Bytes of private memory of this process, without code."""
    found = re.search(r"VmData:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024


def _cap(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (size, resource.RLIM_INFINITY))
