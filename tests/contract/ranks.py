"""Starts ranks for the contract tests, quickly: torch is imported once for all."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Mapping
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import torch
from torch.multiprocessing import start_processes

import rankbench
from rankbench.environ import Place
from rankbench.rank import variants

PATIENCE = 300.0  # seconds

# Ranks are forked from a server that has only imported these modules. A rank of another
# code than the server's imports rankbench again.
PRELOADED = [
    "torch",
    "torch._dynamo",  # Optimizers import this module.
    "torch.distributed.algorithms.ddp_comm_hooks.default_hooks",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.distributed.optim",
    "torch.distributed.pipelining",
    "torch.distributed.rpc",
    "rankbench.rank.__main__",
    "rankbench.rank.world.process_group",
    *(
        f"rankbench.rank.purposes.{name}"
        for name in ("estimate", "gate", "measure", "script")
    ),
    *(f"rankbench.rank.strategies.{name}" for name in variants.names("strategy")),
]


def start_ranks(
    rank: Callable[..., None], arguments: tuple[Any, ...], ranks: int
) -> None:
    """Call rank(number, *arguments) in so many processes; raises what one raises.

    Raises:
        TimeoutError: they do not end; they are killed.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
    context = start_processes(
        _be_rank, (rank, arguments), nprocs=ranks, join=False, start_method="forkserver"
    )
    deadline = time.monotonic() + PATIENCE
    while not context.join(timeout=max(0, deadline - time.monotonic())):
        if time.monotonic() > deadline:
            for process in context.processes:
                process.kill()
            raise TimeoutError(f"ranks have not ended within {PATIENCE:g} s")


def _be_rank(
    number: int, rank: Callable[..., None], arguments: tuple[Any, ...]
) -> None:
    # Nobody needs to look for garbage in what the server has imported.
    gc.freeze()
    rank(number, *arguments)


def start_commands(
    code: Path,
    variables: Mapping[str, str],
    arguments: list[str],
    ranks: int,
    *,
    hosts: int = 1,
) -> None:
    """Run `python -m rankbench.rank` of a copy of the code, once for each rank.

    Args:
        code: the folder of its package.
        variables: what ranks find in their environment; {rank} stands for the number
            of a rank.
        arguments: of each rank.
        hosts: over how many the ranks pretend to be spread.

    Raises:
        ProcessExitedException: one has failed.
    """
    places = [Place.of(rank, ranks, ranks // hosts) for rank in range(ranks)]
    start_ranks(_be_command, (code, variables, arguments, places), ranks)


def _be_command(
    rank: int,
    code: Path,
    variables: Mapping[str, str],
    arguments: list[str],
    places: list[Place],
) -> None:
    os.environ |= places[rank].export()
    os.environ |= {k: v.replace("{rank}", str(rank)) for k, v in variables.items()}
    # A new interpreter would obey these variables; this one was forked.
    if os.environ.get("PYTHONUNBUFFERED") and isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 1)))
    sys.path.insert(0, str(code))
    if Path(rankbench.__file__).parents[1] != code:
        for name in [name for name in sys.modules if name.startswith("rankbench")]:
            del sys.modules[name]
    sys.argv = ["rankbench.rank", *arguments]
    from rankbench.rank.__main__ import main

    main()
