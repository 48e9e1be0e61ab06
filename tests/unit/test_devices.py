"""How busy GPUs were: a stand-in for NVML, since most machines have no GPU."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from factories import make_shape
from rankbench.launch.process import gpu_usage
from rankbench.launch.process.gpu_usage import Devices, open_devices, visible_gpus

pytestmark = pytest.mark.unit

MIB = 2**20


class NVMLError(Exception):
    """As of pynvml, with the number of the error."""

    def __init__(self, value: int = 3) -> None:
        super().__init__(f"error {value}")
        self.value = value


class Nvml:
    """As much of pynvml as is used: a handle is the index of its device."""

    NVMLError = NVMLError

    def __init__(self, rates: list[list[int | None]]) -> None:
        # Percent per device and sample; None: the device does not report it.
        self.rates = rates
        self.looks = [0] * len(rates)

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return len(self.rates)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index >= len(self.rates):
            raise NVMLError
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        return self.nvmlDeviceGetHandleByIndex(int(uuid.removeprefix("GPU-")))

    def nvmlDeviceGetName(self, handle: int) -> str:
        return f"GPU number {handle}"

    NVML_ERROR_GPU_IS_LOST = 15
    lost = False

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetPciInfo(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(busId=f"00000000:{0x1A + handle:02X}:00.0")

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        if self.lost:
            raise NVMLError(self.NVML_ERROR_GPU_IS_LOST)
        return SimpleNamespace(used=(100 * (handle + 1) + self.looks[handle]) * MIB)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> SimpleNamespace:
        rate = self.rates[handle][self.looks[handle]]
        self.looks[handle] += 1
        if rate is None:
            raise NVMLError
        return SimpleNamespace(gpu=rate, memory=0)

    NVML_TEMPERATURE_GPU = NVML_CLOCK_SM = 0

    def nvmlDeviceGetTemperature(self, handle: int, _sensor: int) -> int:
        return 60 + self.looks[handle]

    def nvmlDeviceGetClockInfo(self, handle: int, _kind: int) -> int:
        return 1500 - 100 * self.looks[handle]

    def nvmlDeviceGetMaxClockInfo(self, handle: int, _kind: int) -> int:
        return 1980

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
        # The power cap from the first look on, heat in the third.
        return 0x4 | (0x40 if self.looks[handle] == 3 else 0)

    others: tuple[int, ...] = ()

    def nvmlDeviceGetComputeRunningProcesses(
        self, handle: int
    ) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=number) for number in self.others]

    def nvmlDeviceGetEccMode(self, handle: int) -> list[int]:
        return [1, 1]

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:
        raise NVMLError


# Of a GPU that was looked at three times.
STATE = {
    "temperature_max_c": 63,
    "sm_clock_mean_mhz": 1300,
    "sm_clock_max_mhz": 1980,
    "throttled": ["power cap", "temperature (hardware)"],
    "ecc": True,
    "mig": None,
    "before": {"others": 0, "throttled": []},
}


def test_mean_and_peak_of_each_device():
    """Devices are numbered as ranks count them."""
    devices = Devices(Nvml([[0, 6, 0], [90, 100, 80]]), ["GPU-1", 0])
    for _ in range(3):
        devices.sample()
    first, second = devices.describe()
    assert first == {
        "index": 0,
        "name": "GPU number 1",
        "utilisation_mean": pytest.approx(0.9),
        "utilisation_max": 1.0,
        "memory_peak_mib": 202,
        "samples": 3,
        **STATE,
    }
    found = [second[key] for key in ("index", "name", "memory_peak_mib")]
    assert found == [1, "GPU number 0", 102]
    assert second["utilisation_mean"] == pytest.approx(0.02)


def test_what_is_not_told_is_unknown():
    devices = Devices(Nvml([[None, None]]), [0])
    (one,) = devices.describe()  # never looked at
    assert one["utilisation_mean"] is one["memory_peak_mib"] is None
    devices.sample()
    (one,) = devices.describe()
    assert one["utilisation_mean"] is one["utilisation_max"] is None
    assert (one["memory_peak_mib"], one["samples"]) == (100, 0)
    assert one["throttled"] == ["power cap"]


LOG = """\
[  12.1] NVRM: Xid (PCI:0000:1a:00): 31, pid=77, name=python, Ch 0000000a
[  99.5] NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', GPU has fallen off the bus.
"""


def test_a_gpu_that_disappears_is_named_with_the_error_of_the_kernel(monkeypatch):
    nvml = Nvml([[10], [20]])
    devices = Devices(nvml, [1])
    assert devices.find_lost() is None
    nvml.lost = True
    monkeypatch.setattr(gpu_usage, "output_of", lambda *_: LOG)
    assert devices.find_lost() == (
        "the GPU GPU-1 (Xid 79, GPU has fallen off the bus) no longer answers"
    )
    # The kernel's messages may be closed to users.
    monkeypatch.setattr(gpu_usage, "output_of", lambda *_: None)
    assert devices.find_lost() == "the GPU GPU-1 no longer answers"


@pytest.mark.parametrize(
    ("visible", "chosen"),
    [(None, [0, 1, 2, 3]), ("3,1,0", [3, 1, 0]), ("GPU-2, GPU-1", ["GPU-2", "GPU-1"])],
)
def test_devices_in_the_order_of_cuda(visible, chosen):
    assert visible_gpus(visible, 4) == chosen


@pytest.mark.parametrize(
    ("nvml", "found"),
    [(None, None), (Nvml([]), None), (Nvml([[50], [60]]), [0.6])],
)
def test_opened_if_there_is_nvml_with_the_device(nvml, found, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    devices = open_devices(make_shape(1), {"CUDA_VISIBLE_DEVICES": "1,0"})
    if devices is not None:
        devices.sample()
    used = devices and [one["utilisation_max"] for one in devices.describe()]
    assert used == found
