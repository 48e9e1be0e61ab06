"""Energy from counters of GPUs and CPUs, and the reasons where there is none."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from rankbench.rank.facts import usage
from rankbench.rank.facts.usage import open_cpus, open_gpus
from rankbench.results.numbers.hardware import SHORTEST
from unit.synthetic import (
    STEPS,
    plan_one,
    write_launches,
    write_rows,
)

pytestmark = pytest.mark.unit


class NVMLError(Exception):
    """As of pynvml."""


class Nvml:
    """Two GPUs, whose counters grow by 150 and 250 J between two readings."""

    NVMLError = NVMLError

    def __init__(self, fails: str | None = None) -> None:
        self.millijoules = {"GPU-a": 10**9, "GPU-b": 0}
        self.fails = fails

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return uuid

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        if self.fails:
            raise NVMLError(self.fails)
        return self.millijoules[handle]

    def train(self) -> None:
        self.millijoules["GPU-a"] += 150_000
        self.millijoules["GPU-b"] += 250_000


def test_energy_of_gpus_is_that_of_their_counters(monkeypatch):
    nvml = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    times = iter([10.0, 18.0])
    monkeypatch.setattr(usage.time, "perf_counter", lambda: next(times))
    meter = open_gpus(["GPU-a", "GPU-b"])
    meter.begin()
    nvml.train()
    told = {"joules": 400.0, "seconds": 8.0, "devices": 2, "reason": None}
    assert meter.end() == told


@pytest.mark.parametrize(
    ("nvml", "uuid", "then", "reason"),
    [
        (None, "GPU-a", None, "the package nvidia-ml-py is not installed"),
        (Nvml("Not Supported"), "GPU-a", None, "tells no energy of this GPU: Not Supp"),
        (Nvml(), None, None, "this torch does not tell the UUID of a GPU"),
        (Nvml(), "GPU-a", "GPU is lost", "GPU is lost"),
    ],
)
def test_what_cannot_be_read_is_a_reason_and_never_zero(
    nvml, uuid, then, reason, monkeypatch
):
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    meter = open_gpus([uuid])
    meter.begin()
    if then:
        nvml.fails = then
    found = meter.end()
    assert found["joules"] is None
    assert reason in str(found["reason"])


@pytest.fixture
def rapl(tmp_path: Path) -> Path:
    """Two packages and a part of one, as below /sys/class/powercap."""
    for zone, name in (("0", "package-0"), ("1", "package-1"), ("0:0", "dram")):
        folder = tmp_path / f"intel-rapl:{zone}"
        folder.mkdir()
        (folder / "name").write_text(f"{name}\n")
        (folder / "max_energy_range_uj").write_text("100000000\n")
        (folder / "energy_uj").write_text("99000000\n")
    return tmp_path


def test_energy_of_cpus_is_that_of_their_packages(rapl, tmp_path, monkeypatch):
    meter = open_cpus(rapl)
    meter.begin()
    (rapl / "intel-rapl:0/energy_uj").write_text("99500000\n")
    # This counter began again with 0.
    (rapl / "intel-rapl:1/energy_uj").write_text("2000000\n")
    found = meter.end()
    assert (found["joules"], found["devices"]) == (pytest.approx(0.5 + 3.0), 2)
    assert open_cpus(tmp_path / "none").end()["reason"] == usage.NO_COUNTER
    read = Path.read_text

    def refuse(path: Path) -> str:
        if path.name == "name":
            return read(path)
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_text", refuse)
    reason = str(open_cpus(rapl).end()["reason"])
    assert reason.endswith("max_energy_range_uj may be read by root only")


def write_energy(root: Path, *told: dict[str, Any], **changes: Any) -> dict[str, str]:
    """The row of a launch whose ranks tell this."""
    layout, planned = plan_one(root, "ddp", "1x2", device="cuda")
    ranks = [
        {
            **{"rank": number, "host": "a", "window_s": 8.0, "energy": one},
            "gpus": [{"uuid": f"GPU-{number}", "pci": None}],
            "memory": {"cuda_allocated_mib": 1.0, "rss_peak_mib": 1.0},
        }
        for number, one in enumerate(told)
    ]
    write_launches(layout, planned, ranks=ranks, **changes)
    (row,) = write_rows(layout).values()
    return row


def reading(
    joules: float | None, seconds: float = 8.0, reason: str | None = None
) -> dict[str, Any]:
    devices = 0 if joules is None else 1
    told = {"joules": joules, "seconds": seconds, "devices": devices}
    return {**told, "reason": reason}


def test_joules_of_a_sample_and_power_of_a_device(tmp_path):
    row = write_energy(tmp_path, reading(4096.0), reading(2048.0), samples=1024)
    # 6144 J for 1024 samples; 768 W of two devices.
    assert (float(row["j_per_sample"]), float(row["watts"])) == (6.0, 384.0)
    assert "energy_unknown" not in row


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        (
            [reading(100.0, 2.0)] * 2,
            f"a timed window of 2.0 s is shorter than {SHORTEST:g} s: steps: "
            f"{STEPS * 5 // 2} would suffice",
        ),
        ([reading(None, reason="no permission"), reading(None)], "no permission"),
        ([reading(400.0), reading(None, reason="MIG")], "MIG"),
    ],
)
def test_a_row_without_a_number_says_why(told, reason, tmp_path):
    row = write_energy(tmp_path, *told)
    assert row["energy_unknown"] == reason
    assert "j_per_sample" not in row


@pytest.mark.parametrize("hot", [["temperature (hardware)"], []])
def test_a_gpu_that_was_throttled_marks_the_row(tmp_path, hot):
    """A power cap alone is full load."""
    device = {"utilisation_mean": 0.9, "sm_clock_mean_mhz": 1400.0}
    device |= {"temperature_max_c": 91.0, "throttled": ["power cap", *hot]}
    row = write_energy(tmp_path, reading(8.0), reading(8.0), devices=[device])
    assert (row["sm_clock_mhz"], row["temperature_c"]) == ("1400", "91")
    assert row["throttled"] == "; ".join(["power cap", *hot])
    assert ("throttled" in row["marks"].split()) == bool(hot)


def test_cpus_without_counters_have_no_columns(tmp_path):
    layout, planned = plan_one(tmp_path, "single")
    write_launches(layout, planned)
    (row,) = write_rows(layout).values()
    assert "j_per_sample" not in row
