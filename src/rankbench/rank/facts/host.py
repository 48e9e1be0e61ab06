"""Facts about this host: software, network cards, GPUs, drivers.

Run as a program, it prints as JSON what planning needs to know of this environment.
Arguments are names of programs; the output says which of them are installed.
launch/site/machine.py runs it on this machine, launch/images runs it in an image.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from rankbench.cell import PACKAGES
from rankbench.environ import physical_cores, read_driver, version_of
from rankbench.record import first_line

NET, INFINIBAND = Path("/sys/class/net"), Path("/sys/class/infiniband")


def describe_nics(
    net: Path = NET, infiniband: Path = INFINIBAND
) -> list[dict[str, Any]]:
    """Network cards that are up, and InfiniBand or RoCE adapters.

    Virtual interfaces are listed only if no network card is up.

    Returns:
        For each: name, driver, model (PCI vendor and device numbers, or the type that
        the adapter reports) and gbit_s; None for facts that the kernel does not report.
    """
    up = [link for link in sorted(net.glob("*")) if _read(link / "operstate") == "up"]
    up = [link for link in up if link.name != "lo"]
    cards = [link for link in up if (link / "device").exists()] or up
    # The kernel gives the speed of a card in Mbit/s; -1 if it is unknown.
    return [_describe_nic(card, "", _read(card / "speed"), 1e3) for card in cards] + [
        _describe_nic(
            adapter, _read(adapter / "hca_type"), _read(adapter / "ports/1/rate"), 1
        )
        for adapter in sorted(infiniband.glob("*"))
    ]


def _describe_nic(nic: Path, model: str, rate: str, per_gbit: float) -> dict[str, Any]:
    driver = nic / "device/driver"
    vendor, number = (
        _read(nic / "device" / name).removeprefix("0x") for name in ("vendor", "device")
    )
    speed = re.match(r"\d+(\.\d+)?", rate)
    return {
        "name": nic.name,
        "driver": driver.resolve().name if driver.exists() else None,
        "model": model or (f"{vendor}:{number}" if vendor and number else None),
        "gbit_s": (float(speed.group()) / per_gbit if speed else 0) or None,
    }


def describe_gpu(index: int) -> dict[str, Any]:
    """Name, memory and size of a CUDA device, as torch reports them."""
    properties = torch.cuda.get_device_properties(index)
    return {
        "name": properties.name,
        "memory_gib": round(properties.total_memory / 1024**3, 1),
        "capability": f"{properties.major}.{properties.minor}",
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


def _read(path: Path) -> str:
    """The text of a file of the kernel; empty if there is none."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


# Other packages whose version can change a result.
_OTHERS = ("numpy", "mpi4py", "oneccl")


def describe_host() -> dict[str, Any]:
    """Hardware and kernel of this host; in a container, the system of the image."""
    cpu = re.search(
        r"^model name\s*:\s*(.+)$", _read(Path("/proc/cpuinfo")), re.MULTILINE
    )
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        system = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        system = platform.system()
    return {
        "host": socket.gethostname(),
        "cpu": cpu.group(1).strip() if cpu else platform.processor(),
        "cpus": os.cpu_count(),
        "cores": len(physical_cores(set(range(os.cpu_count() or 1)))),
        "memory_gib": round(memory / 1024**3, 1),
        "os": system,
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "nics": describe_nics(),
        "gpus": [describe_gpu(i) for i in range(torch.cuda.device_count())],
        "gpu_links": gpu_links(),
        "gpu_driver": read_driver(),
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
        # Those that work on this machine.
        "backends": [name for name in built_backends() if name != "nccl" or cuda],
        "mpi": mpi_version(),
        **{name: version_of(name) for name in (*PACKAGES, *_OTHERS)},
    }


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


def mpi_version(maps: Path = Path("/proc/self/maps")) -> str | None:
    """The name and version of the MPI library in this process; None without one.

    Args:
        maps: the list of the libraries that this process has loaded.
    """
    found = re.search(r"/.*/libmpi\.so[^/\n]*$", maps.read_text(), re.MULTILINE)
    if found is None:
        return None
    said, length = ctypes.create_string_buffer(8192), ctypes.c_int()
    # This function may be called before MPI_Init and after MPI_Finalize.
    ctypes.CDLL(found.group()).MPI_Get_library_version(said, ctypes.byref(length))
    return first_line(said.value.decode(errors="replace"), 80)


def main() -> None:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    gpus = [torch.cuda.get_device_properties(index) for index in range(count)]
    facts = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "cuda_devices": [gpu.name for gpu in gpus],
        "cuda_memory_gib": [gpu.total_memory / 2**30 for gpu in gpus],
        "cuda_capability": [float(f"{gpu.major}.{gpu.minor}") for gpu in gpus],
        "backends": built_backends(),
        "rpc": torch.distributed.rpc.is_available(),
        **_ask_horovod(),
        "packages": {name: version_of(name) for name in PACKAGES},
        "programs": {name: shutil.which(name) is not None for name in sys.argv[1:]},
    }
    print(json.dumps(facts))


def _ask_horovod() -> dict[str, Any]:
    """The backends that Horovod was built with, and whether it takes CUDA tensors."""
    try:
        import horovod.torch as horovod
    except ImportError:
        return {"horovod": [], "horovod_cuda": False}
    kinds = ("gloo", "mpi", "nccl", "ccl")
    return {
        "horovod": [kind for kind in kinds if getattr(horovod, f"{kind}_built")()],
        "horovod_cuda": bool(horovod.cuda_built()),
    }


if __name__ == "__main__":
    main()
