"""The devices of a rank, and what joins it with the others.

A runtime joins the ranks of a launch: it is a file of this folder that strategies name.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol, cast

import torch

from rankbench.cell import Cell, Shape
from rankbench.environ import Place, is_task, pin


class Runtime(Protocol):
    """The functions that the module of each runtime has."""

    def join(
        self, backend: str, place: Place, init_method: str, device: torch.device
    ) -> None:
        """Join the other ranks; not called if ranks do not communicate.

        Args:
            backend: name of the backend.
            place: place of this rank among all.
            init_method: URL at which the ranks meet.
            device: device of this rank.
        """

    def barrier(self) -> None:
        """Wait until all ranks are here; do nothing if this rank has joined none."""

    def operation(
        self,
        name: str,
        size: int,
        device: torch.device,
        group: torch.distributed.ProcessGroup | None = None,
    ) -> Callable[[], None]:
        """A function that runs a communication operation on `size` bytes.

        The ranks of a group take part; None is all ranks. Bytes are rounded up if they
        cannot be divided evenly among them. Every rank must call the function the same
        number of times.

        Raises:
            KeyError: this runtime has no such operation.
        """

    def largest(self, value: float) -> float:
        """The largest of the values of all ranks, which call it together."""

    def leave(self) -> None:
        """Leave the other ranks; do nothing if this rank has joined none.

        Raises:
            RuntimeError: another rank closed a connection earlier than expected.
        """


def find_runtime(name: str) -> Runtime:
    """The runtime of that name, which is a file in this folder."""
    module = importlib.import_module(f"rankbench.rank.world.{name}")
    return cast(Runtime, module)


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


_PCI = Path("/sys/bus/pci/devices")


def bind_near(gpus: Iterable[str | None], devices: Path = _PCI) -> None:
    """Bind this process to the CPUs next to its GPUs, among those that it may use.

    On another socket it would reach them over the link between sockets. It keeps all
    of its CPUs if none is near, or if the kernel does not tell.

    Args:
        gpus: place of each GPU on the PCI bus, DOMAIN:BUS:DEVICE; None if unknown.
        devices: where the kernel describes PCI devices.
    """
    near = {cpu for gpu in gpus if gpu for cpu in _read_cpus(gpu, devices)}
    if allowed := near & os.sched_getaffinity(0):
        pin([list(allowed)])


def _read_cpus(gpu: str, devices: Path) -> set[int]:
    """The CPUs of the NUMA node of a PCI device: the kernel's ``0-3,8-11``."""
    domain, bus, device = gpu.split(":")
    try:
        text = (devices / f"{domain:0>4}:{bus}:{device}.0/local_cpulist").read_text()
    except OSError:
        return set()
    ranges = [part.split("-") for part in text.strip().split(",") if part]
    return {cpu for ends in ranges for cpu in range(int(ends[0]), int(ends[-1]) + 1)}
