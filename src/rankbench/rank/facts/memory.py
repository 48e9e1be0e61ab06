"""Peak memory of a rank, from the high-water marks of the kernel and of torch."""

from __future__ import annotations

import resource
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

MIB = 1024**2


def reset_peaks(devices: Sequence[torch.device]) -> None:
    """Reset the high-water marks, so that peaks do not include imports and start-up."""
    try:
        # Sets VmHWM of this process to the memory that is resident now; see proc(5).
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pass  # the kernel or container forbids it: the peak includes start-up
    for gpu in _gpus(devices):
        torch.cuda.reset_peak_memory_stats(gpu)


def read_peaks(devices: Sequence[torch.device]) -> dict[str, Any]:
    """Return the peaks since `reset_peaks`, in MiB; None for devices that are not used.

    `rss_peak_mib`: resident host memory, including pages shared with other processes.
    `cuda_allocated_mib`: tensors. `cuda_reserved_mib`: the pool of torch's allocator.
    `cuda_device_used_mib`: memory in use on the whole device at the time of the call,
    with contexts and communication buffers, also of other processes. Each is that of
    the GPU of this rank on which it is largest; `cuda_allocated_by_gpu_mib` lists the
    tensors of all GPUs of this rank.
    """
    gpus = _gpus(devices)
    used = [(total - free) / MIB for free, total in map(torch.cuda.mem_get_info, gpus)]
    allocated = [torch.cuda.max_memory_allocated(gpu) / MIB for gpu in gpus]
    reserved = [torch.cuda.max_memory_reserved(gpu) / MIB for gpu in gpus]
    return {
        "rss_peak_mib": _resident_peak() / MIB,
        "cuda_allocated_mib": max(allocated, default=None),
        "cuda_reserved_mib": max(reserved, default=None),
        "cuda_device_used_mib": max(used, default=None),
        "cuda_allocated_by_gpu_mib": allocated or None,
    }


def _gpus(devices: Sequence[torch.device]) -> list[torch.device]:
    return [one for one in dict.fromkeys(devices) if one.type == "cuda"]


def optimizer_mib(state: Iterable[Any]) -> float:
    """Size of the tensors in an optimizer's state on this rank, in MiB.

    Args:
        state: one dictionary for each parameter.
    """
    kept = [value for entry in state for value in entry.values()]
    return sum(_local_bytes(value) for value in kept if torch.is_tensor(value)) / MIB


def _local_bytes(value: torch.Tensor) -> int:
    # A sharded tensor reports the size of the whole; this rank holds its local part.
    local = value.to_local() if hasattr(value, "to_local") else value
    return int(local.numel() * local.element_size())


def _resident_peak() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
