"""What a rank uses: CPU time, energy and memory.

Drivers count the energy of devices: millijoules of a GPU since its driver was loaded
(NVML), microjoules of a CPU package (RAPL). Both are read before and after the timed
window, and on every host.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import resource
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from rankbench.rank.facts.host import identify_gpu


@dataclass(frozen=True, slots=True)
class CpuTime:
    """User and system time, in seconds.

    Attributes:
        own: time of this process, with all its threads.
        loaders: time of the processes that it started through multiprocessing.
    """

    own: float
    loaders: float

    def __sub__(self, earlier: CpuTime) -> CpuTime:
        return CpuTime(self.own - earlier.own, self.loaders - earlier.loaders)


def cpu_time() -> CpuTime:
    """The CPU time used so far; the call takes about ten microseconds."""
    living = [_of_process(child.pid) for child in multiprocessing.active_children()]
    own = resource.getrusage(resource.RUSAGE_SELF)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return CpuTime(
        own.ru_utime + own.ru_stime, ended.ru_utime + ended.ru_stime + sum(living)
    )


def _of_process(pid: int | None) -> float:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0  # the process has just ended
    # utime and stime: fields 14 and 15 of proc(5); field 3 is the first one after ")".
    ticks = sum(map(int, stat.rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


RAPL = Path("/sys/class/powercap")

NO_COUNTER = "the kernel shows no energy counter of this CPU (RAPL)"
OTHER_RANK = "rank 0 of the host reads the counters of its CPUs"


@dataclass(frozen=True, slots=True)
class Energy:
    """What some devices consumed between two readings.

    Attributes:
        joules: sum over the devices; None if it is unknown.
        seconds: between the readings; a little more than the timed window.
        devices: number of GPUs, or of CPU packages, that were read.
        reason: why the energy is unknown; None if it is known.
    """

    joules: float | None
    seconds: float
    devices: int
    reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Meter:
    """Reads counters; or knows why there are none."""

    def __init__(
        self,
        counters: Sequence[Callable[[], float]] = (),
        *,
        reason: str | None = None,
        wraps_at: Sequence[float] = (),
    ) -> None:
        """Take counters, each in joules.

        Args:
            counters: return what a device has consumed since any moment.
            reason: why there are no counters.
            wraps_at: joules after which each counter begins again with 0.
        """
        self._counters = counters
        self._reason = reason
        self._wraps_at = wraps_at
        self._before: list[float] = []
        self._begun = 0.0

    def begin(self) -> None:
        self._begun = time.perf_counter()
        self._before = self._read()

    def end(self) -> Energy:
        """What was consumed since `begin`."""
        after = self._read()
        seconds = time.perf_counter() - self._begun
        if self._reason is not None:
            return Energy(None, seconds, 0, self._reason)
        used = [now - then for now, then in zip(after, self._before, strict=True)]
        for index, most in enumerate(self._wraps_at):
            used[index] %= most
        return Energy(sum(used), seconds, len(used))

    def _read(self) -> list[float]:
        if self._reason is not None:
            return []
        try:
            return [read() for read in self._counters]
        except Exception as error:  # NVML's errors have a class of their own
            self._reason = f"an energy counter could not be read: {error}"
            return []


def open_meter(devices: Sequence[torch.device], local_rank: int) -> Meter:
    """A meter for the GPUs of this rank; on CPUs for the whole host, by one rank."""
    indices = {device.index for device in devices if device.type == "cuda"}
    if indices:
        return open_gpus([identify_gpu(index)["uuid"] for index in sorted(indices)])
    return open_cpus() if local_rank == 0 else Meter(reason=OTHER_RANK)


def open_gpus(uuids: Sequence[str | None]) -> Meter:
    """A meter for GPUs with these UUIDs."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return Meter(reason="the package nvidia-ml-py is not installed")
    if None in uuids:
        return Meter(reason="this torch does not tell the UUID of a GPU")
    try:
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in uuids]
        for handle in handles:
            nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except nvml.NVMLError as error:
        # MIG instances, GPUs before Volta and some virtual GPUs have no counter.
        return Meter(reason=f"NVML tells no energy of this GPU: {error}")

    def counter(handle: Any) -> Callable[[], float]:
        return lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3

    return Meter([counter(handle) for handle in handles])


def open_cpus(folder: Path = RAPL) -> Meter:
    """A meter for the CPU packages of this host."""
    zones = [path for path in sorted(folder.glob("intel-rapl:*")) if _is_package(path)]
    if not zones:
        return Meter(reason=NO_COUNTER)
    try:
        limits = [_read_joules(zone / "max_energy_range_uj") for zone in zones]
        for zone in zones:
            _read_joules(zone / "energy_uj")
    except PermissionError as error:
        return Meter(reason=f"{error.filename} may be read by root only")
    except (OSError, ValueError) as error:
        return Meter(reason=f"an energy counter could not be read: {error}")

    def counter(zone: Path) -> Callable[[], float]:
        return lambda: _read_joules(zone / "energy_uj")

    return Meter([counter(zone) for zone in zones], wraps_at=limits)


def _is_package(zone: Path) -> bool:
    try:
        return (zone / "name").read_text().startswith("package")
    except OSError:
        return False


def _read_joules(path: Path) -> float:
    return int(path.read_text()) / 1e6


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
