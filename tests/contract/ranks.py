"""Starts ranks for the contract tests, quickly: torch is imported once for all."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

from torch.multiprocessing import start_processes

# Ranks are forked from a server that has imported these, and has done nothing else.
PRELOADED = [
    "torch",
    "torch.distributed.fsdp",
    "torch.distributed.optim",
    "torch.distributed.pipelining",
    "torch.distributed.rpc",
    "rankbench.rank.train",
]


def start_ranks(
    rank: Callable[..., None], arguments: tuple[Any, ...], ranks: int
) -> None:
    """Call rank(number, *arguments) in so many processes; raises what one raises."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
    start_processes(rank, arguments, nprocs=ranks, start_method="forkserver")
