"""What this host is and which software runs on it: facts for the record."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket
from pathlib import Path
from typing import Any

import torch

from rankbench.cores import physical_cores


def describe_host() -> dict[str, Any]:
    """Hardware and kernel of this host."""
    return {
        "host": socket.gethostname(),
        "cpu": _field("/proc/cpuinfo", "model name") or platform.processor(),
        "cpus": os.cpu_count(),
        "cores": len(physical_cores(set(range(os.cpu_count() or 1)))),
        "memory_gib": _memory_gib(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "load_1min": os.getloadavg()[0],
        "gpus": [_describe_gpu(i) for i in range(torch.cuda.device_count())],
    }


def describe_software() -> dict[str, Any]:
    """Versions that can change a number."""
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
        **{name: package_version(name) for name in ("horovod", "deepspeed")},
    }


def package_version(package: str) -> str | None:
    """Version of what is installed; None if it is not."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def built_backends() -> list[str]:
    """Backends of torch.distributed that this build has."""
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
    """Those of them that this machine can use."""
    usable = torch.cuda.is_available()
    return [name for name in built_backends() if name != "nccl" or usable]


def _describe_gpu(index: int) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(index)
    return {
        "name": properties.name,
        "memory_gib": round(properties.total_memory / 1024**3, 1),
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
    }


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
