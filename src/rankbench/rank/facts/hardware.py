"""Network cards, GPUs and drivers of this host, as the kernel reports them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import torch

NET, INFINIBAND = Path("/sys/class/net"), Path("/sys/class/infiniband")
GPU_DRIVER = Path("/proc/driver/nvidia/version")


def describe_nics(
    net: Path = NET, infiniband: Path = INFINIBAND
) -> list[dict[str, Any]]:
    """Network cards that are up, and InfiniBand or RoCE adapters.

    Virtual interfaces are listed only if no network card is up.

    Returns:
        For each: name, driver, model (PCI vendor and device numbers, or the type that
        the adapter reports) and gbit_s; None for facts that the kernel does not report.
    """
    up = [
        link
        for link in _entries(net)
        if link.name != "lo" and _read(link / "operstate") == "up"
    ]
    found = [
        {
            "name": link.name,
            "driver": _link_name(link / "device/driver"),
            "model": _pci(link / "device"),
            "gbit_s": _megabits(link / "speed"),
        }
        for link in [one for one in up if (one / "device").exists()] or up
    ]
    return found + [
        {
            "name": adapter.name,
            "driver": _link_name(adapter / "device/driver"),
            "model": _read(adapter / "hca_type") or _pci(adapter / "device"),
            "gbit_s": _first_number(_read(adapter / "ports/1/rate")),
        }
        for adapter in _entries(infiniband)
    ]


def describe_gpu(index: int) -> dict[str, Any]:
    """Name, memory and size of a CUDA device, as torch reports them."""
    properties = torch.cuda.get_device_properties(index)
    return {
        "name": properties.name,
        "memory_gib": round(properties.total_memory / 1024**3, 1),
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
    }


def identify_gpu(index: int) -> dict[str, str | None]:
    """Return what tells a GPU from all others: its UUID, and its place on the PCI bus.

    Returns:
        uuid, pci; None for what this version of torch does not report.
    """
    properties = torch.cuda.get_device_properties(index)
    uuid = getattr(properties, "uuid", None)
    names = ("pci_domain_id", "pci_bus_id", "pci_device_id")
    parts = [getattr(properties, name) for name in names if hasattr(properties, name)]
    return {
        "uuid": None if uuid is None else f"GPU-{uuid}",
        "pci": ":".join(f"{part:02x}" for part in parts) or None,
    }


def gpu_driver(path: Path = GPU_DRIVER) -> str | None:
    """The version of NVIDIA's kernel module; None without one."""
    found = re.search(r"\s(\d+\.\d+(\.\d+)?)\s", _read(path) or "")
    return found.group(1) if found else None


def gpu_links() -> list[str]:
    """The kinds of links between this host's GPUs, as nvidia-smi names them: NV18."""
    if torch.cuda.device_count() < 2:
        return []
    try:
        done = subprocess.run(
            ["nvidia-smi", "topo", "-m"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return parse_links(done.stdout)


def parse_links(topology: str) -> list[str]:
    """The different kinds of links in the matrix that nvidia-smi prints, sorted."""
    rows = [line.split() for line in topology.splitlines() if line.startswith("GPU")]
    gpus = len(rows)
    return sorted({link for row in rows for link in row[1 : gpus + 1]} - {"X"})


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _pci(device: Path) -> str | None:
    """PCI numbers of vendor and device: ``15b3:1017``."""
    vendor, model = _read(device / "vendor"), _read(device / "device")
    if not vendor or not model:
        return None
    return f"{vendor.removeprefix('0x')}:{model.removeprefix('0x')}"


def _megabits(path: Path) -> float | None:
    """The speed in Gbit/s; None if the driver reports -1 or cannot be read."""
    value = _first_number(_read(path))
    return value / 1e3 if value and value > 0 else None


def _first_number(text: str | None) -> float | None:
    found = re.match(r"-?\d+(\.\d+)?", text or "")
    return float(found.group()) if found else None


def _link_name(path: Path) -> str | None:
    return path.resolve().name if path.exists() else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
