"""Chooses the CPUs of each rank: cores of its own, or those next to its GPUs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_PCI = Path("/sys/bus/pci/devices")


def choose_cores(
    local_rank: int, cores_per_rank: int, cores: list[list[int]]
) -> list[list[int]]:
    """The cores of one rank; if there are not enough, ranks share them in turn."""
    first = local_rank * cores_per_rank
    return [cores[(first + i) % len(cores)] for i in range(cores_per_rank)]


def pin(cores: list[list[int]]) -> None:
    """Bind this process and its existing threads to these cores."""
    _bind({cpu for core in cores for cpu in core})


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
        _bind(allowed)


def _read_cpus(gpu: str, devices: Path) -> set[int]:
    """The CPUs of the NUMA node of a PCI device: the kernel's ``0-3,8-11``."""
    domain, bus, device = gpu.split(":")
    try:
        text = (devices / f"{domain:0>4}:{bus}:{device}.0/local_cpulist").read_text()
    except OSError:
        return set()
    ranges = [part.split("-") for part in text.strip().split(",") if part]
    return {cpu for ends in ranges for cpu in range(int(ends[0]), int(ends[-1]) + 1)}


def _bind(cpus: set[int]) -> None:
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), cpus)
