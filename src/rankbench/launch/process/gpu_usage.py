"""The GPUs of this host while the ranks train, as NVML tells of them."""

from __future__ import annotations

import importlib
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from rankbench.cell import Shape
from rankbench.launch.hosts.base import output_of

# Bits of NVML's reasons for lower clocks (nvml.h, nvmlClocksEventReasons) -> words.
_THROTTLED = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "temperature (driver)",
    0x40: "temperature (hardware)",
    0x80: "power brake",
}

# The module `pynvml` of the package nvidia-ml-py; tests replace it.
Nvml = Any

_MIB = 2**20


class _Device:
    """A GPU, and what NVML tells of it; None for what it does not tell (MIG)."""

    def __init__(self, nvml: Nvml, name: str | int) -> None:
        """Find it, and look at it before the ranks start.

        Raises:
            nvml.NVMLError: there is no such device.
        """
        by = "Index" if isinstance(name, int) else "UUID"
        self._nvml = nvml
        self._handle = getattr(nvml, f"nvmlDeviceGetHandleBy{by}")(name)
        self.name, self.uuid = self.ask("Name"), self.ask("UUID")
        # DOMAIN:BUS:DEVICE.FUNCTION
        place = str(nvml.nvmlDeviceGetPciInfo(self._handle).busId)
        self.pci = place.partition(".")[0][-10:].lower()
        self._samples: dict[str, list[float]] = defaultdict(list)
        self._throttled: set[str] = set()
        self._throttled_before = self._find_throttled()
        self._others = len(self._list_processes())

    def ask(self, what: str, *given: Any) -> Any:
        """What NVML answers; None if it does not."""
        try:
            return getattr(self._nvml, f"nvmlDeviceGet{what}")(self._handle, *given)
        except self._nvml.NVMLError:
            return None

    def _find_throttled(self) -> set[str]:
        reasons = self.ask("CurrentClocksThrottleReasons") or 0
        return {name for bit, name in _THROTTLED.items() if reasons & bit}

    def _list_processes(self) -> list[int]:
        """Processes that compute on it."""
        return [one.pid for one in self.ask("ComputeRunningProcesses") or ()]

    def sample(self) -> None:
        """Look once."""
        memory, rates = self.ask("MemoryInfo"), self.ask("UtilizationRates")
        seen = {
            "memory": memory and memory.used / _MIB,
            "utilisation": rates and rates.gpu / 100,
            "temperature": self.ask("Temperature", self._nvml.NVML_TEMPERATURE_GPU),
            "clock": self.ask("ClockInfo", self._nvml.NVML_CLOCK_SM),
        }
        for key, value in seen.items():
            if value is not None:
                self._samples[key].append(value)
        self._throttled |= self._find_throttled()

    def is_lost(self) -> bool:
        """Whether it no longer answers."""
        try:
            self._nvml.nvmlDeviceGetMemoryInfo(self._handle)
        except self._nvml.NVMLError as error:
            return bool(error.value == self._nvml.NVML_ERROR_GPU_IS_LOST)
        return False

    def describe(self) -> dict[str, Any]:
        """The samples as the record has them, once the ranks have ended.

        A process that was there before them, or that is there now, is not theirs. NVML
        may still list a process that has just ended.
        """
        now = (Path(f"/proc/{pid}").exists() for pid in self._list_processes())
        ecc, mig, samples = self.ask("EccMode"), self.ask("MigMode"), self._samples
        return {
            "name": self.name,
            "utilisation_mean": _mean(samples["utilisation"]),
            "utilisation_max": max(samples["utilisation"], default=None),
            "memory_peak_mib": max(samples["memory"], default=None),
            "samples": len(samples["utilisation"]),
            "temperature_max_c": max(samples["temperature"], default=None),
            "sm_clock_mean_mhz": _mean(samples["clock"]),
            "sm_clock_max_mhz": self.ask("MaxClockInfo", self._nvml.NVML_CLOCK_SM),
            "ecc": ecc and bool(ecc[0]),
            "mig": mig and bool(mig[0]),
            "throttled": sorted(self._throttled),
            # A GPU at full load reaches its power cap: that is as its maker wants.
            "before": {
                "others": max(self._others, sum(now)),
                "throttled": sorted(self._throttled_before - {_THROTTLED[0x4]}),
            },
        }


class Devices:
    """The GPUs that the ranks of a launch use on this host."""

    def __init__(self, nvml: Nvml, visible: Sequence[str | int]) -> None:
        """Find them.

        Args:
            nvml: initialised.
            visible: numbers or UUIDs, in the order in which the ranks count them.

        Raises:
            nvml.NVMLError: there is no such device.
        """
        self._devices = [_Device(nvml, name) for name in visible]

    def sample(self) -> None:
        """Look once at each."""
        for device in self._devices:
            device.sample()

    def find_lost(self) -> str | None:
        """A sentence about GPUs that no longer answer; None if all do."""
        lost = [device for device in self._devices if device.is_lost()]
        if not lost:
            return None
        log = output_of("dmesg") or ""  # Users may not be allowed to read it.
        named = [f"{device.uuid}{find_xid(log, device.pci)}" for device in lost]
        return f"the GPU {', '.join(named)} no longer answers"

    def describe(self) -> list[dict[str, Any]]:
        """What was seen of each, as the record has it."""
        return [{"index": i, **one.describe()} for i, one in enumerate(self._devices)]


def open_devices(shape: Shape, environment: Mapping[str, str]) -> Devices | None:
    """The GPUs that the ranks will use; None where NVML cannot tell of them.

    Args:
        shape: processes of the launch.
        environment: that of the ranks.
    """
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
        visible = environment.get("CUDA_VISIBLE_DEVICES")
        present = nvml.nvmlDeviceGetCount()
        used = shape.ranks_per_node * shape.devices_per_rank
        names = visible_gpus(visible, present)[:used]
        return Devices(nvml, names) if names else None
    except nvml.NVMLError:
        return None


def find_xid(log: str, pci: str) -> str:
    """`` (Xid 79, GPU has fallen off the bus)``, the last of a GPU; or nothing.

    Args:
        log: messages of the kernel.
        pci: DOMAIN:BUS:DEVICE of the GPU, the domain with four digits.
    """
    pattern = rf"NVRM: Xid \(PCI:{re.escape(pci)}\): (\d+),? ?(.*)"
    found = re.findall(pattern, log, re.IGNORECASE)
    if not found:
        return ""
    number, words = found[-1]
    said = re.sub(r"pid='?[^,]*'?, (name=[^,]*, )?", "", words).strip(" .")
    return f" (Xid {number}{', ' + said if said else ''})"


def visible_gpus(visible: str | None, present: int) -> list[str | int]:
    """Numbers or UUIDs of the GPUs that CUDA shows, in its order.

    Args:
        visible: CUDA_VISIBLE_DEVICES; None if it is not set.
        present: GPUs of the host.
    """
    if visible is None or not present:
        return [*range(present)]
    # As in CUDA: an entry of another kind than the first, or that names no GPU, ends
    # the list; a repeated one empties it.
    names = [name.strip() for name in visible.split(",")]
    numbers = [*takewhile(lambda n: n.isdecimal() and int(n) < present, names)]
    kind = "GPU-" if names[0].startswith("GPU-") else "MIG-"
    named = numbers or [*takewhile(lambda name: name.startswith(kind), names)]
    if len({*named}) < len(named):
        return []
    return [int(name) if name.isdecimal() else name for name in named]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
