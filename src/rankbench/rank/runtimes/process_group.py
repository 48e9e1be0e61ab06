"""torch.distributed's process group: what most strategies communicate over."""

from __future__ import annotations

import os

import torch
from torch import distributed

from rankbench.environ import Place


def join(backend: str, place: Place, init_method: str, device: torch.device) -> None:
    # Libraries look for their place there, whatever launcher gave it.
    os.environ |= place.export()
    distributed.init_process_group(
        backend,
        init_method=init_method,
        rank=place.rank,
        world_size=place.size,
        device_id=device if backend == "nccl" else None,
    )


def barrier() -> None:
    if distributed.is_initialized():
        distributed.barrier()


def leave() -> None:
    if distributed.is_initialized():
        # Rank 0 evaluates last, and its store must be there until all have gone.
        distributed.barrier()
        distributed.destroy_process_group()
