"""A rank among the others: its devices, and the process group."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
from torch import distributed

from rankbench.cell import Cell, Shape
from rankbench.environ import Place
from rankbench.rank.strategies.base import World


def join_world(cell: Cell, shape: Shape, place: Place, init_method: str) -> World:
    """Choose this rank's devices and join the process group, if there is one."""
    if cell.device == "cuda":
        present = torch.cuda.device_count()
        first = place.local_rank * shape.devices_per_rank
        # With more ranks than GPUs they share them in turn (a marked row).
        devices = tuple(
            torch.device("cuda", (first + i) % present)
            for i in range(shape.devices_per_rank)
        )
        torch.cuda.set_device(devices[0])
    else:
        devices = (torch.device("cpu"),) * shape.devices_per_rank
    if cell.backend != "none":
        device_id = devices[0] if cell.backend == "nccl" else None
        distributed.init_process_group(
            cell.backend,
            init_method=init_method,
            rank=place.rank,
            world_size=place.size,
            device_id=device_id,
        )
    return World(
        rank=place.rank,
        size=place.size,
        local_rank=place.local_rank,
        device=devices[0],
        devices=devices,
        backend=cell.backend,
    )


def barrier() -> None:
    """All ranks go on together, and no device has work left from before."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    if distributed.is_initialized():
        distributed.barrier()
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def leave_world() -> None:
    """Part from the other ranks, when every report is written.

    Nothing that goes wrong from here on can touch what was measured: a rank may find
    that another has closed their connection a moment earlier.
    """
    if not distributed.is_initialized():
        return
    try:
        # Rank 0 evaluates last, and its store must be there until all have gone.
        barrier()
        distributed.destroy_process_group()
    except RuntimeError as error:
        print(f"while leaving the process group: {error}", file=sys.stderr, flush=True)


def describe_transport(world: World) -> dict[str, Any] | None:
    """What carries the bytes, as far as it was asked for."""
    if world.backend == "none":
        return None
    prefixes = ("GLOO_", "NCCL_", "UCX_", "FI_")
    asked = {k: v for k, v in os.environ.items() if k.startswith(prefixes)}
    return {"backend": world.backend, "asked": dict(sorted(asked.items()))}
