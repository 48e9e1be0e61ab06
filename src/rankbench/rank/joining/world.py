"""Lets a rank join and leave the other ranks, and chooses its devices."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import torch

from rankbench.cell import Cell, Shape
from rankbench.environ import Place, meeting_host
from rankbench.rank.joining.host_names import check_name
from rankbench.rank.runtimes import Runtime
from rankbench.rank.strategies.base import World


def join_world(
    cell: Cell, shape: Shape, place: Place, init_method: str, runtime: Runtime
) -> World:
    """Choose this rank's devices; join the other ranks if the cell has a backend."""
    devices = choose_devices(cell, shape, place.local_rank)
    if cell.device == "cuda":
        torch.cuda.set_device(devices[0])
    if cell.backend != "none":
        if host := meeting_host():
            check_name(host)
        runtime.join(cell.backend, place, init_method, devices[0])
    return World(
        rank=place.rank,
        size=place.size,
        local_rank=place.local_rank,
        device=devices[0],
        devices=devices,
        backend=cell.backend,
        rank_batch=shape.rank_batch,
    )


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


def wait_for_devices(devices: Sequence[torch.device]) -> None:
    """Wait until these devices have finished all work; nothing waits for a CPU."""
    for device in dict.fromkeys(devices):
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def leave_world(runtime: Runtime) -> None:
    """Leave the other ranks, after all reports are written.

    Errors are only printed, because they cannot affect the measurement: another rank
    may have closed its connection a moment earlier.
    """
    try:
        runtime.leave()
    except RuntimeError as error:
        print(f"while leaving the other ranks: {error}", file=sys.stderr, flush=True)


def describe_transport(world: World) -> dict[str, Any] | None:
    """The backend and the variables that configure it; None without a backend."""
    if world.backend == "none":
        return None
    prefixes = ("GLOO_", "NCCL_", "TP_", "UCX_", "FI_", "OMPI_MCA_", "CCL_", "HOROVOD_")
    asked = {k: v for k, v in os.environ.items() if k.startswith(prefixes)}
    return {"backend": world.backend, "asked": dict(sorted(asked.items()))}
