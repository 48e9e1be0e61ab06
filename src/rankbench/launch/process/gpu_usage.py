"""The GPUs of this host while the ranks train, as NVML tells of them."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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

# What is sampled of a GPU while ranks train.
_SAMPLED: dict[str, Callable[[Nvml, Any], float]] = {
    "memory": lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).used / _MIB,
    "utilisation": lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
    "temperature": lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(
        gpu, nvml.NVML_TEMPERATURE_GPU
    ),
    "clock": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
}
# What does not change meanwhile, under the names of the record.
_FIXED: dict[str, Callable[[Nvml, Any], Any]] = {
    "sm_clock_max_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetMaxClockInfo(
        gpu, nvml.NVML_CLOCK_SM
    ),
    "ecc": lambda nvml, gpu: bool(nvml.nvmlDeviceGetEccMode(gpu)[0]),
    "mig": lambda nvml, gpu: bool(nvml.nvmlDeviceGetMigMode(gpu)[0]),
}


@dataclass(slots=True)
class _Device:
    handle: Any
    name: str
    uuid: str
    pci: str
    samples: dict[str, list[float]] = field(
        default_factory=lambda: {key: [] for key in _SAMPLED}
    )
    throttled: set[str] = field(default_factory=set)
    throttled_before: set[str] = field(default_factory=set)
    others: int = 0


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
        self._nvml = nvml
        self._devices = []
        for name in visible:
            if isinstance(name, int):
                handle = nvml.nvmlDeviceGetHandleByIndex(name)
            else:
                handle = nvml.nvmlDeviceGetHandleByUUID(name)
            # DOMAIN:BUS:DEVICE.FUNCTION
            place = str(nvml.nvmlDeviceGetPciInfo(handle).busId)
            self._devices.append(
                _Device(
                    handle,
                    name=nvml.nvmlDeviceGetName(handle),
                    uuid=nvml.nvmlDeviceGetUUID(handle),
                    pci=place.partition(".")[0][-10:].lower(),
                )
            )
        # The ranks have not started yet.
        for device in self._devices:
            device.throttled_before = self._ask_throttled(device)
            device.others = len(self._list_processes(device))

    def sample(self) -> None:
        """Look once at each; what a device does not tell (MIG) stays unknown."""
        for device in self._devices:
            for key, ask in _SAMPLED.items():
                if (value := self._ask(ask, device.handle)) is not None:
                    device.samples[key].append(value)
            device.throttled |= self._ask_throttled(device)

    def _ask_throttled(self, device: _Device) -> set[str]:
        reasons = self._ask(
            lambda nvml, gpu: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu),
            device.handle,
        )
        return {name for bit, name in _THROTTLED.items() if (reasons or 0) & bit}

    def _list_processes(self, device: _Device) -> list[int]:
        """Processes that compute on a device."""
        found = self._ask(
            lambda nvml, gpu: nvml.nvmlDeviceGetComputeRunningProcesses(gpu),
            device.handle,
        )
        return [process.pid for process in found or ()]

    def _ask(self, ask: Callable[..., Any], handle: Any) -> Any:
        """What NVML answers; None if it does not."""
        try:
            return ask(self._nvml, handle)
        except self._nvml.NVMLError:
            return None

    def find_lost(self) -> str | None:
        """A sentence about GPUs that no longer answer; None if all do."""
        lost = []
        for device in self._devices:
            try:
                self._nvml.nvmlDeviceGetMemoryInfo(device.handle)
            except self._nvml.NVMLError as error:
                if error.value == self._nvml.NVML_ERROR_GPU_IS_LOST:
                    lost.append(device)
        if not lost:
            return None
        log = output_of("dmesg") or ""  # Users may not be allowed to read it.
        named = [f"{device.uuid}{find_xid(log, device.pci)}" for device in lost]
        return f"the GPU {', '.join(named)} no longer answers"

    def describe(self) -> list[dict[str, Any]]:
        """The samples of each device as the record has them, once the ranks have ended.

        A process that was there before them, or that is there now, is not theirs. NVML
        may still list a process that has just ended.
        """
        for device in self._devices:
            living = [
                number
                for number in self._list_processes(device)
                if Path(f"/proc/{number}").exists()
            ]
            device.others = max(device.others, len(living))
        return [
            {
                "index": index,
                "name": device.name,
                "utilisation_mean": _mean(device.samples["utilisation"]),
                "utilisation_max": max(device.samples["utilisation"], default=None),
                "memory_peak_mib": max(device.samples["memory"], default=None),
                "samples": len(device.samples["utilisation"]),
                "temperature_max_c": max(device.samples["temperature"], default=None),
                "sm_clock_mean_mhz": _mean(device.samples["clock"]),
                "throttled": sorted(device.throttled),
                # A GPU at full load reaches its power cap: that is as its maker wants.
                "before": {
                    "others": device.others,
                    "throttled": sorted(device.throttled_before - {_THROTTLED[0x4]}),
                },
                **{key: self._ask(ask, device.handle) for key, ask in _FIXED.items()},
            }
            for index, device in enumerate(self._devices)
        ]


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
    kind = re.match("GPU-|MIG-|", names[0])
    assert kind
    named = list(
        takewhile(
            lambda name: (
                name.startswith(kind[0])
                if kind[0]
                else name.isdecimal() and int(name) < present
            ),
            names,
        )
    )
    if len({*named}) < len(named):
        return []
    return [int(name) if name.isdecimal() else name for name in named]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
