"""Energy of this rank's devices, from the counters of their drivers.

GPUs count millijoules since their driver was loaded (NVML), CPUs microjoules (RAPL, by
package). Both are read before and after the timed window, and on every host.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from rankbench.rank.facts.hardware import identify_gpu

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
