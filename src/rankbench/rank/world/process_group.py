"""The runtime of most strategies: the process group of torch.distributed."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import distributed

from rankbench.environ import Place

# Longer than any launch, because the supervisor enforces the time limit. By default,
# NCCL would end ranks that wait ten minutes for an evaluation on rank 0.
ENDLESS = timedelta(days=7)


def join(backend: str, place: Place, init_method: str, device: torch.device) -> None:
    # Libraries read their place from these variables, whatever the launcher set.
    os.environ |= place.export()
    distributed.init_process_group(
        backend,
        init_method=init_method,
        rank=place.rank,
        world_size=place.size,
        timeout=ENDLESS,
        device_id=device if backend == "nccl" else None,
    )


def barrier() -> None:
    if distributed.is_initialized():
        distributed.barrier()


def operation(
    name: str,
    size: int,
    device: torch.device,
    group: distributed.ProcessGroup | None = None,
) -> Callable[[], None]:
    # In older versions of torch, None does not stand for all ranks everywhere.
    group = group or distributed.group.WORLD
    ranks, rank = distributed.get_world_size(group), distributed.get_rank(group)
    members = distributed.get_process_group_ranks(group)
    # All ranks get the same number of elements.
    elements = math.ceil(size / 4 / ranks)
    whole = torch.zeros(elements * ranks, device=device)
    in_parts = name in ("reduce_scatter", "all_gather")
    part = torch.zeros(elements if in_parts else 0, device=device)
    received = torch.zeros_like(whole) if name == "all_to_all" else part

    def pass_on() -> None:
        """Send to the next rank and receive from the previous one, like a pipeline."""
        received = torch.empty_like(whole)
        both = [
            distributed.P2POp(distributed.isend, whole, members[(rank + 1) % ranks]),
            distributed.P2POp(distributed.irecv, received, members[rank - 1]),
        ]
        for work in distributed.batch_isend_irecv(both):
            work.wait()

    if name == "send_recv":
        return pass_on
    calls: dict[str, tuple[Any, ...]] = {
        "all_reduce": (distributed.all_reduce, whole),
        "reduce_scatter": (distributed.reduce_scatter_tensor, part, whole),
        "all_gather": (distributed.all_gather_into_tensor, whole, part),
        "broadcast": (distributed.broadcast, whole, members[0]),
        "all_to_all": (distributed.all_to_all_single, received, whole),
    }
    call, *tensors = calls[name]
    return partial(call, *tensors, group=group)


def largest(value: float) -> float:
    # NCCL needs a tensor on a GPU; "cuda" is the current device of this rank.
    device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
    found = torch.tensor([value], dtype=torch.float64, device=device)
    distributed.all_reduce(found, op=distributed.ReduceOp.MAX)
    return found.item()


def leave() -> None:
    if distributed.is_initialized():
        # Rank 0 finishes last, and the others need its store until they leave.
        distributed.barrier()
        distributed.destroy_process_group()
