"""Facts about this host and its software, for the record."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import platform
import socket
from pathlib import Path
from typing import Any

import torch

from rankbench.cores import physical_cores
from rankbench.rank.facts.hardware import (
    describe_gpu,
    describe_nics,
    gpu_driver,
    gpu_links,
)
from rankbench.record import first_line

# Packages other than torch whose version can change a result.
PACKAGES = ("torchvision", "horovod", "deepspeed", "numpy", "mpi4py", "oneccl")


def describe_host() -> dict[str, Any]:
    """Hardware and kernel of this host."""
    return {
        "host": socket.gethostname(),
        "cpu": _field("/proc/cpuinfo", "model name") or platform.processor(),
        "cpus": os.cpu_count(),
        "cores": len(physical_cores(set(range(os.cpu_count() or 1)))),
        "memory_gib": _memory_gib(),
        "os": _os_name(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "load_1min": os.getloadavg()[0],
        "nics": describe_nics(),
        "gpus": [describe_gpu(i) for i in range(torch.cuda.device_count())],
        "gpu_links": gpu_links(),
        "gpu_driver": gpu_driver(),
    }


def describe_software() -> dict[str, Any]:
    """Versions that can change a result; None for software that is not installed."""
    cuda = torch.cuda.is_available()
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "torch_commit": torch.version.git_version,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if cuda else None,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if cuda else None,
        "libc": " ".join(platform.libc_ver()),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "backends": available_backends(),
        "mpi": mpi_version(),
        **{name: package_version(name) for name in PACKAGES},
    }


def package_version(package: str) -> str | None:
    """The version of an installed package; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def built_backends() -> list[str]:
    """The backends of torch.distributed in this build of torch."""
    distributed = torch.distributed
    if not distributed.is_available():
        return []
    checks = {
        "gloo": distributed.is_gloo_available(),
        "mpi": distributed.is_mpi_available(),
        "nccl": distributed.is_nccl_available(),
    }
    return [name for name, present in checks.items() if present]


def available_backends() -> list[str]:
    """The backends of torch.distributed that work on this machine."""
    usable = torch.cuda.is_available()
    return [name for name in built_backends() if name != "nccl" or usable]


def mpi_version() -> str | None:
    """The name and version of the MPI library in this process; None without one.

    The MPI function may be called before MPI_Init and after MPI_Finalize.
    """
    path = _loaded("libmpi.so")
    if path is None:
        return None
    said, length = ctypes.create_string_buffer(8192), ctypes.c_int()
    ctypes.CDLL(path).MPI_Get_library_version(said, ctypes.byref(length))
    return first_line(said.value.decode(errors="replace"), 80)


def _loaded(name: str) -> str | None:
    """The path of a shared library that this process has loaded; None if it has not."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.partition("/")[1] + line.partition("/")[2]
        if Path(path).name.startswith(name):
            return path
    return None


def _os_name() -> str:
    """The name of the operating system; in a container, that of the image."""
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


def _field(path: str, name: str) -> str | None:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


def _memory_gib() -> float:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return round(pages / 1024**3, 1)
