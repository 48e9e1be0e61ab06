"""Chooses the devices of a rank, and lets it wait for them and for the other ranks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import torch

from rankbench.cell import Cell, Shape
from rankbench.environ import is_task
from rankbench.rank.world import Runtime


def choose_devices(
    cell: Cell, shape: Shape, local_rank: int
) -> tuple[torch.device, ...]:
    """Return the devices that a rank drives.

    Raises:
        RuntimeError: this host has fewer GPUs than the rank needs.
    """
    if cell.device == "cpu":
        return (torch.device("cpu"),) * shape.devices_per_rank
    present = torch.cuda.device_count()
    first = local_rank * shape.devices_per_rank
    if present == shape.devices_per_rank and is_task(shape.ranks):
        first = 0  # Slurm has bound the task to its own GPUs.
    last = first + shape.devices_per_rank - 1
    if not present or (last >= present and not cell.oversubscribe):
        shown = os.environ.get("CUDA_VISIBLE_DEVICES", "not set")
        raise RuntimeError(
            f"local rank {local_rank} needs the GPU {last}, but torch finds {present} "
            f"here (CUDA_VISIBLE_DEVICES: {shown}): correct the GPUs in site.yaml, or "
            "allow ranks to share GPUs by oversubscribe: true"
        )
    # If they are oversubscribed, ranks share GPUs in turn, and the row is marked.
    return tuple(
        torch.device("cuda", index % present) for index in range(first, last + 1)
    )


def wait_for_all(runtime: Runtime, devices: Sequence[torch.device]) -> None:
    """Wait until all ranks are here and their devices have finished all work.

    Args:
        runtime: what joins the ranks.
        devices: all devices of this rank.
    """
    wait_for_devices(devices)
    runtime.barrier()
    wait_for_devices(devices)


def wait_for_devices(devices: Iterable[torch.device]) -> None:
    """Wait until these devices have finished all work; nothing waits for a CPU."""
    for gpu in gpus_among(devices):
        torch.cuda.synchronize(gpu)


def gpus_among(devices: Iterable[torch.device]) -> list[torch.device]:
    """The GPUs among these devices, each of them once."""
    return [device for device in dict.fromkeys(devices) if device.type == "cuda"]
