"""What a rank uses: CPU time, energy and memory; and what others do on its CPUs.

Drivers count the energy of devices: millijoules of a GPU since its driver was loaded
(NVML), microjoules of a CPU package (RAPL). Both are read before and after the timed
window, and on every host. So are the counters of CPUs that the kernel keeps.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import re
import resource
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from rankbench.environ import read_stat
from rankbench.rank.facts.host import identify_gpu
from rankbench.rank.world.devices import gpus_among
from rankbench.rank.world.lifeline import Progress

RAPL = Path("/sys/class/powercap")

NO_COUNTER = "the kernel shows no energy counter of this CPU (RAPL)"
OTHER_RANK = "rank 0 of the host reads the counters of its CPUs"

MIB = 1024**2


class CpuTime(NamedTuple):
    """User and system time, in seconds.

    Attributes:
        own: time of this process, with all its threads.
        loaders: time of the processes that it started through multiprocessing.
    """

    own: float
    loaders: float


_AT_FIRST = CpuTime(0.0, 0.0)


def cpu_time(since: CpuTime = _AT_FIRST) -> CpuTime:
    """The CPU time used so far, or since; the call takes about ten microseconds."""
    living = 0.0
    for child in multiprocessing.active_children():
        try:
            living += sum(_read_ticks(child.pid, 14, 15))
        except OSError:
            pass  # the process has just ended
    own = resource.getrusage(resource.RUSAGE_SELF)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return CpuTime(
        own.ru_utime + own.ru_stime - since.own,
        ended.ru_utime + ended.ru_stime + living - since.loaders,
    )


def process_age() -> float:
    """Seconds since this process was created, including the start of Python."""
    (created,) = _read_ticks("self", 22)
    return time.clock_gettime(time.CLOCK_BOOTTIME) - created


def _read_ticks(pid: int | str | None, *fields: int) -> list[float]:
    """Fields of proc(5) that are times, in seconds, of a process."""
    values = read_stat(pid)
    return [int(values[field - 3]) / os.sysconf("SC_CLK_TCK") for field in fields]


@dataclass
class Meter:
    """Reads counters of energy; or knows why there are none.

    Args:
        counters: return the joules that a device has consumed since any moment.
        reason: why there are no counters.
        wraps_at: joules after which each counter begins again with 0.
    """

    counters: Sequence[Callable[[], float]] = ()
    reason: str | None = None
    wraps_at: Sequence[float] = ()
    _before: list[float] = field(default_factory=list)
    _begun: float = 0.0

    def begin(self) -> None:
        self._begun = time.perf_counter()
        self._before = self._read()

    def end(self) -> dict[str, Any]:
        """What the devices consumed since `begin`.

        Returns:
            joules (sum over the devices; None if it is unknown), seconds (since
            `begin`), devices (number of GPUs, or of CPU packages, that were read) and
            reason (why the energy is unknown; None if it is known).
        """
        after = self._read()
        seconds = time.perf_counter() - self._begun
        used = [now - then for now, then in zip(after, self._before, strict=False)]
        for index, most in enumerate(self.wraps_at[: len(used)]):
            used[index] %= most
        return {
            "joules": sum(used) if self.reason is None else None,
            "seconds": seconds,
            "devices": len(used),
            "reason": self.reason,
        }

    def _read(self) -> list[float]:
        if self.reason is None:
            try:
                return [read() for read in self.counters]
            except Exception as error:  # NVML's errors have a class of their own
                self.reason = f"an energy counter could not be read: {error}"
        return []


def open_meter(devices: Sequence[torch.device], local_rank: int) -> Meter:
    """A meter for the GPUs of this rank; on CPUs for the whole host, by one rank."""
    indices = sorted(gpu.index for gpu in gpus_among(devices))
    if indices:
        return open_gpus([identify_gpu(index)["uuid"] for index in indices])
    return open_cpus() if local_rank == 0 else Meter(reason=OTHER_RANK)


def open_gpus(uuids: Sequence[str | None]) -> Meter:
    """A meter for GPUs with these UUIDs."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return Meter(reason="the package nvidia-ml-py is not installed")
    if None in uuids:
        return Meter(reason="this torch does not tell the UUID of a GPU")

    def joules(handle: Any) -> float:
        return float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3

    try:
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in uuids]
        for handle in handles:
            joules(handle)
    except nvml.NVMLError as error:
        # MIG instances, GPUs before Volta and some virtual GPUs have no counter.
        return Meter(reason=f"NVML tells no energy of this GPU: {error}")
    return Meter([partial(joules, handle) for handle in handles])


def open_cpus(folder: Path = RAPL) -> Meter:
    """A meter for the CPU packages of this host."""
    names = sorted(folder.glob("intel-rapl:*/name"))
    zones = [n.parent for n in names if n.read_text().startswith("package")]
    if not zones:
        return Meter(reason=NO_COUNTER)

    def joules(zone: Path, name: str = "energy_uj") -> float:
        return int((zone / name).read_text()) / 1e6

    try:
        limits = [joules(zone, "max_energy_range_uj") for zone in zones]
        for zone in zones:
            joules(zone)
    except PermissionError as error:
        return Meter(reason=f"{error.filename} may be read by root only")
    except (OSError, ValueError) as error:
        return Meter(reason=f"an energy counter could not be read: {error}")
    return Meter([partial(joules, zone) for zone in zones], wraps_at=limits)


def reset_peaks(devices: Sequence[torch.device]) -> None:
    """Reset the high-water marks, so that peaks do not include what was before."""
    try:
        # Sets VmHWM of this process to the memory that is resident now; see proc(5).
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pass  # the kernel or container forbids it: the peak includes start-up
    for gpu in gpus_among(devices):
        torch.cuda.reset_peak_memory_stats(gpu)


def read_peaks(devices: Sequence[torch.device]) -> dict[str, Any]:
    """Return the peaks since `reset_peaks`, in MiB; None for devices that are not used.

    `rss_peak_mib`: resident host memory, including pages shared with other processes.
    `cuda_allocated_mib`: tensors. `cuda_reserved_mib`: the pool of torch's allocator.
    Each is that of the GPU of this rank on which it is largest.
    """
    gpus = gpus_among(devices)
    allocated = [torch.cuda.max_memory_allocated(gpu) / MIB for gpu in gpus]
    reserved = [torch.cuda.max_memory_reserved(gpu) / MIB for gpu in gpus]
    status = Path("/proc/self/status").read_text()
    resident = re.search(r"^VmHWM:\s*(\d+) kB", status, re.MULTILINE)
    used_at_most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "rss_peak_mib": int(resident.group(1) if resident else used_at_most) / 1024,
        "cuda_allocated_mib": max(allocated, default=None),
        "cuda_reserved_mib": max(reserved, default=None),
    }


def size_of_state(state: Iterable[Any]) -> float:
    """MiB of the tensors in an optimizer's state on this rank.

    Args:
        state: one dictionary for each parameter.
    """
    size = 0
    for value in (value for entry in state for value in entry.values()):
        if torch.is_tensor(value):
            # A sharded tensor reports the size of the whole; this rank has a part.
            local = value.to_local() if hasattr(value, "to_local") else value
            size += local.numel() * local.element_size()
    return size / MIB


# A tick of 10 ms is 2 % of this: shares of a shorter window mean nothing.
_SHORTEST = 0.5  # seconds

# Of a line of /proc/stat: idle, iowait, irq and softirq. Interrupts may be the rank's.
_NOT_BUSY = slice(3, 7)
_STEAL = 7

_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


class Surroundings:
    """Reads the counters of the CPUs of this rank, and of its CPU quota."""

    def __init__(
        self, progress: Progress, proc: Path = _PROC, cgroups: Path = _CGROUPS
    ) -> None:
        """Take what to read.

        Args:
            progress: of this rank; it knows for how long its process stood still.
            proc, cgroups: where the kernel shows its counters.
        """
        self._progress, self._proc, self._cgroups = progress, proc, cgroups

    def begin(self) -> None:
        self._cpus = sorted(os.sched_getaffinity(0))
        self._groups = list(_find_groups(self._proc, self._cgroups))
        self._before = self._read()

    def end(self) -> dict[str, Any] | None:
        """What has happened since `begin`; None if the window was too short to tell.

        Returns:
            seconds; own (CPU seconds of this rank and its loaders); cpus; busy and
            steal (seconds of each of them); periods and throttled (of the group of this
            process that was throttled most); quota (CPUs that this process may use at
            once; None for no limit); stopped (seconds of suspension).
        """
        now, then = self._read(), self._before
        gone = {name: now[name] - then[name] for name in now}
        if gone["seconds"] < _SHORTEST:
            return None
        busy = (gone["seconds"] - gone["idle"] - gone["steal"]).clip(min=0.0)
        throttled, periods = max(gone["held"].tolist(), default=(0, 0))
        quotas = [quota for group in self._groups if (quota := _read_quota(group))]
        return {
            **{name: gone[name] for name in ("seconds", "own", "stopped")},
            "cpus": self._cpus,
            "busy": busy.tolist(),
            "steal": gone["steal"].tolist(),
            "periods": periods,
            "throttled": throttled,
            "quota": min(quotas, default=None),
        }

    def _read(self) -> dict[str, Any]:
        """Counters now, in seconds; `held`: throttled periods, and all."""
        idle, steal = _read_cpus(self._proc / "stat", self._cpus)
        held = []
        for group in self._groups:
            lines = (group / "cpu.stat").read_text().splitlines()
            counts = dict(line.split() for line in lines)
            names = ("nr_throttled", "nr_periods")
            held.append([int(counts.get(name, 0)) for name in names])
        return {
            "seconds": time.perf_counter(),
            "own": sum(cpu_time()),
            "stopped": self._progress.stopped,
            "idle": idle,
            "steal": steal,
            "held": np.array(held, dtype=np.int64),
        }


def _read_cpus(file: Path, cpus: Sequence[int]) -> np.ndarray:
    """Seconds in which each CPU was idle, or taken from this machine, [2, CPUs]."""
    ticks = os.sysconf("SC_CLK_TCK")
    found = {}
    for line in file.read_text().splitlines():
        name, *values = line.split()
        if name.startswith("cpu") and name != "cpu":
            counts = [int(value) / ticks for value in values]
            found[name] = sum(counts[_NOT_BUSY]), counts[_STEAL]
    return np.array([found.get(f"cpu{cpu}", (0.0, 0.0)) for cpu in cpus]).T


def _find_groups(proc: Path, cgroups: Path) -> Iterator[Path]:
    """The control groups that limit the CPUs of this process, the innermost first."""
    for line in (proc / "self/cgroup").read_text().splitlines():
        _, controllers, name = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = cgroups / "cpu" if controllers else cgroups
        group = top / name.lstrip("/")
        # In a container, the name may be that of a group outside.
        for limit in (group, *group.parents):
            if (limit / "cpu.stat").exists() and limit.is_relative_to(top):
                yield limit


def _read_quota(group: Path) -> float | None:
    """CPUs that a group may use at once; None for no limit."""
    try:
        quota, period = (group / "cpu.max").read_text().split()
    except OSError:
        files = (group / f"cpu.cfs_{name}_us" for name in ("quota", "period"))
        quota, period = (
            file.read_text().strip() if file.exists() else "-1" for file in files
        )
    return None if quota in ("max", "-1") else int(quota) / int(period)
