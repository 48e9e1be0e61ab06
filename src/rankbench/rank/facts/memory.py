"""Peak memory of a rank, from high-water marks; nothing is sampled."""

from __future__ import annotations

import resource
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

MIB = 1024**2


def reset_peaks(device: torch.device) -> None:
    """Forget what was needed so far (imports, start-up)."""
    try:
        # Resets VmHWM of this process to what is resident now (proc(5), clear_refs).
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pass  # a kernel or container that forbids it: the peak includes start-up
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def read_peaks(device: torch.device) -> dict[str, float | None]:
    """Peaks since `reset_peaks`, in MiB.

    `rss_peak_mib` is resident host memory, with pages that are shared with other
    processes; the `cuda_` values are tensors, the allocator's pool, and what of the
    whole device is in use (contexts and communication buffers of all its users too).
    """
    peaks: dict[str, float | None] = {
        "rss_peak_mib": _resident_peak() / MIB,
        "cuda_allocated_mib": None,
        "cuda_reserved_mib": None,
        "cuda_device_used_mib": None,
    }
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        peaks["cuda_allocated_mib"] = torch.cuda.max_memory_allocated(device) / MIB
        peaks["cuda_reserved_mib"] = torch.cuda.max_memory_reserved(device) / MIB
        peaks["cuda_device_used_mib"] = (total - free) / MIB
    return peaks


def optimizer_mib(state: Iterable[Any]) -> float:
    """MiB of the tensors that an optimizer keeps on this rank.

    Args:
        state: for each parameter what the optimizer keeps, by name.
    """
    kept = [value for entry in state for value in entry.values()]
    return sum(_local_bytes(value) for value in kept if torch.is_tensor(value)) / MIB


def _local_bytes(value: torch.Tensor) -> int:
    # A sharded tensor has the size of the whole; this rank holds its local part.
    local = value.to_local() if hasattr(value, "to_local") else value
    return int(local.numel() * local.element_size())


def _resident_peak() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
