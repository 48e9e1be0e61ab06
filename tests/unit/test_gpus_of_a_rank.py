"""Tests that a rank uses the planned GPUs, measures all of them, and shares none."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from factories import make_cell, make_shape, make_spec
from rankbench.environ import Place, keep_devices, restore_devices
from rankbench.launch.hosts.base import ThisMachine
from rankbench.launch.hosts.slurm import SlurmJob
from rankbench.launch.hosts.slurm_job_array import JobArray
from rankbench.launch.process import gpu_usage, supervise
from rankbench.launch.process.reports import find_shared_gpu
from rankbench.rank.facts import collectives, usage
from rankbench.rank.facts.host import identify_gpu
from rankbench.rank.strategies.base import Operation, World
from rankbench.rank.training.loop import Clock
from rankbench.rank.world import horovod, process_group
from rankbench.rank.world.devices import choose_devices, wait_for_all

pytestmark = pytest.mark.unit

CPU = torch.device("cpu")
GPUS = (torch.device("cuda", 0), torch.device("cuda", 1))


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """The GPUs that were waited for, in this order."""
    found: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "synchronize", found.append)
    return found


@pytest.mark.parametrize(
    ("present", "ranks", "per_rank", "local_rank", "cell", "tasks", "numbers"),
    [
        (4, 4, 1, 0, {}, "", [0]),
        (4, 4, 1, 3, {}, "", [3]),
        (4, 2, 2, 1, {}, "", [2, 3]),
        # Ranks share GPUs only if the cell allows it.
        (1, 2, 1, 1, {"oversubscribe": True}, "", [0]),
        # A task that sees its own GPUs, as by ``--gpu-bind=single:1``, takes them.
        # Ranks that torchrun starts share one task.
        (1, 2, 1, 1, {}, "2", [0]),
        (1, 4, 1, 1, {}, "2", None),
        (0, 2, 1, 1, {}, "", None),
        (1, 2, 1, 1, {}, "", None),
        (0, 2, 1, 1, {"oversubscribe": True}, "", None),
    ],
)
def test_a_rank_drives_the_gpus_behind_those_of_earlier_ranks(
    monkeypatch, present, ranks, per_rank, local_rank, cell, tasks, numbers
):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: present)
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", tasks)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    shape = make_shape(ranks, devices_per_rank=per_rank)
    made = make_cell(device="cuda", **cell)
    if numbers is not None:
        devices = choose_devices(made, shape, local_rank)
        assert [device.index for device in devices] == numbers
        return
    said = rf"GPU 1, but torch finds {present} here \(CUDA_VISIBLE_DEVICES: 3\): .*site"
    with pytest.raises(RuntimeError, match=said):
        choose_devices(made, shape, local_rank)


def test_all_gpus_of_a_rank_are_waited_for(waits):
    runtime: Any = SimpleNamespace(barrier=lambda: waits.append(CPU))
    wait_for_all(runtime, GPUS)
    wait_for_all(process_group, (CPU, CPU))
    assert waits == [*GPUS, CPU, *GPUS]


@pytest.mark.parametrize(
    ("devices", "events"),
    [
        ((CPU, CPU), 0),
        (GPUS[:1], 2),
        # Ranks that share GPUs may list one of them twice.
        ((GPUS[0], GPUS[0]), 2),
        (GPUS, 0),
    ],
)
def test_the_clock_fits_the_devices(monkeypatch, devices, events):
    made = []
    event = SimpleNamespace(record=lambda: None)
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: made.append(1) or event)
    Clock(devices, ["load"], 1)
    assert len(made) == events


def test_a_phase_ends_when_all_gpus_have_finished(monkeypatch):
    """The second GPU works for 5 s more after the host has gone on."""
    now = [0]

    def finish(device: torch.device) -> None:
        now[0] += 5 * 10**9 * device.index

    monkeypatch.setattr(torch.cuda, "synchronize", finish)
    monkeypatch.setattr("time.perf_counter_ns", lambda: now[0])
    clock = Clock(GPUS, ["load", "forward"], 1)
    clock.begin(0)
    clock.mark("load")
    clock.mark("forward")
    clock.finish()
    np.testing.assert_allclose(clock.seconds(), [[5, 5]])


def test_the_fullest_gpu_is_the_peak_of_a_rank(monkeypatch):
    reset: list[torch.device] = []
    facts = {
        "reset_peak_memory_stats": reset.append,
        "max_memory_allocated": lambda gpu: (gpu.index + 1) * 2**20,
        "max_memory_reserved": lambda gpu: (gpu.index + 2) * 2**20,
    }
    for name, function in facts.items():
        monkeypatch.setattr(torch.cuda, name, function)
    usage.reset_peaks(GPUS)
    assert reset == list(GPUS)
    peaks = usage.read_peaks(GPUS)
    assert peaks["cuda_allocated_mib"] == 2
    assert peaks["cuda_reserved_mib"] == 3
    assert usage.read_peaks((CPU,))["cuda_allocated_mib"] is None


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        (
            {"uuid": "ab-12", "pci_domain_id": 0, "pci_bus_id": 26, "pci_device_id": 0},
            {"uuid": "GPU-ab-12", "pci": "00:1a:00"},
        ),
        ({}, {"uuid": None, "pci": None}),
    ],
)
def test_a_gpu_has_a_name_of_its_own(monkeypatch, properties, expected):
    found = SimpleNamespace(**properties)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: found)
    assert identify_gpu(0) == expected


def report(rank: int, host: str, *uuids: str | None) -> dict[str, Any]:
    gpus = [{"uuid": uuid, "pci": None} for uuid in uuids]
    return {"rank": {"rank": rank, "host": host, "gpus": gpus}}


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (
            ["GPU-a", "GPU-a"],
            ["GPU-a"],
            "ranks 0 and 1 used the same GPU of the host a (GPU-a): each needs its own",
        ),
        (["GPU-a"], ["GPU-b"], None),
        ([None], [None], None),
        ([], [], None),
    ],
)
def test_ranks_that_shared_a_gpu_are_named(first, second, said):
    assert find_shared_gpu([report(0, "a", *first), report(1, "a", *second)]) == said


def test_a_job_array_watches_no_gpu_of_the_login_node(monkeypatch):
    monkeypatch.setattr(gpu_usage, "open_devices", lambda shape, env: "devices")
    spec = make_spec(cell=make_cell(device="cuda"))
    assert supervise.find_devices(spec, ThisMachine(), {}) == "devices"
    assert supervise.find_devices(spec, JobArray(2, (), 60), {}) is None


@pytest.mark.parametrize(
    ("here", "names", "watched"),
    [
        ("node2", ("node2", "node3"), True),
        ("node2", ("node1", "node2"), True),
        # A smaller cell of a shared job runs on some of its hosts.
        ("node1", ("node2", "node3"), False),
        ("login", ("node1", "node2"), False),
    ],
)
def test_gpus_are_watched_where_ranks_run(monkeypatch, here, names, watched):
    monkeypatch.setattr(gpu_usage, "open_devices", lambda shape, env: "devices")
    monkeypatch.setenv("SLURMD_NODENAME", here)
    spec = make_spec(cell=make_cell(device="cuda"))
    found = supervise.find_devices(spec, SlurmJob("4711", names), {})
    assert (found == "devices") is watched


def test_only_the_supervisor_limits_how_long_ranks_wait(monkeypatch):
    """Rank 0 may evaluate for longer than NCCL's default of ten minutes."""
    asked: dict[str, Any] = {}

    def init(backend: str, **options: Any) -> None:
        asked.update(options)

    monkeypatch.setattr("torch.distributed.init_process_group", init)
    monkeypatch.setattr("os.environ", {})
    place = Place(rank=0, size=1, local_rank=0, local_size=1, node=0)
    process_group.join("nccl", place, "file:///x", GPUS[0])
    assert asked["timeout"].total_seconds() > 24 * 3600


@pytest.mark.parametrize(
    ("device", "built", "refused"),
    [(GPUS[0], True, True), (GPUS[0], False, False), (CPU, True, False)],
)
def test_horovod_measures_the_backend_that_its_row_names(
    monkeypatch, device, built, refused
):
    begun: list[str] = []
    library = SimpleNamespace(
        nccl_built=lambda: built, init=lambda: begun.append("init")
    )
    monkeypatch.setitem(sys.modules, "horovod", SimpleNamespace(torch=library))
    monkeypatch.setitem(sys.modules, "horovod.torch", library)
    monkeypatch.setattr("os.environ", {})
    place = Place(rank=0, size=1, local_rank=0, local_size=1, node=0)
    said = pytest.raises(RuntimeError, match=r"built with NCCL .* not mpi")
    with said if refused else nullcontext():
        horovod.join("mpi", place, "env://", device)
    assert bool(begun) is not refused


TWO = World(
    rank=0,
    size=2,
    local_rank=0,
    device=GPUS[0],
    devices=GPUS[:1],
    backend="nccl",
    rank_batch=1,
)


class GpuOfConstantSpeed:
    """A GPU whose collectives take 10 us and 1 s per 10 GB, on a clock of its own.

    At first, torch keeps all of its memory.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, free: int) -> None:
        self.seconds = 0.0
        self.calls: dict[int, int] = {}
        self.free = 0
        give_back = partial(setattr, self, "free", free)
        monkeypatch.setattr(torch.cuda, "empty_cache", give_back)
        monkeypatch.setattr(torch.cuda, "Event", self.event)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
        monkeypatch.setattr(
            torch.cuda, "mem_get_info", lambda device: (self.free, free)
        )

    def event(self, *, enable_timing: bool) -> Any:
        assert enable_timing
        event = SimpleNamespace(at=0.0)
        event.record = lambda: setattr(event, "at", self.seconds)
        event.elapsed_time = lambda end: 1e3 * (end.at - event.at)
        return event

    def operation(self, name: str, size: int, device: torch.device, group: None) -> Any:
        def call() -> None:
            self.calls[size] = self.calls.get(size, 0) + 1
            self.seconds += 1e-5 + size / 1e10

        return call

    def largest(self, value: float) -> float:
        return value


def test_collectives_of_gpus_are_timed_up_to_1_gib(monkeypatch):
    gpu: Any = GpuOfConstantSpeed(monkeypatch, free=80 * 2**30)
    points = collectives.sweep([Operation("all_reduce", 8.0)], gpu, TWO, 8)
    assert [point["bytes"] for point in points] == [4**k for k in range(5, 16)]
    for point in points:
        expected = 1e-5 + point["bytes"] / 1e10
        assert point["seconds"] == pytest.approx([expected] * len(point["seconds"]))
    # Small calls are timed in groups, large ones one by one.
    assert gpu.calls[4**5] >= collectives.REPEATS * collectives.CALLS
    assert gpu.calls[4**15] < collectives.CALLS


def test_collectives_end_before_the_memory_does(monkeypatch):
    gpu: Any = GpuOfConstantSpeed(monkeypatch, free=2 * 4**14)
    points = collectives.sweep([Operation("all_reduce", 8.0)], gpu, TWO, 8)
    assert points[-1]["bytes"] == 4**13


def test_a_launcher_that_renumbers_gpus_does_not_change_those_of_a_rank():
    """DeepSpeed's launcher would give the GPUs 0 and 1 to ranks on a shared host."""
    for_ranks = {"CUDA_VISIBLE_DEVICES": "2,3"}
    for_ranks |= keep_devices(for_ranks)
    for_ranks["CUDA_VISIBLE_DEVICES"] = "0,1"
    restore_devices(for_ranks)
    assert for_ranks["CUDA_VISIBLE_DEVICES"] == "2,3"
    all_gpus = keep_devices({}) | {"CUDA_VISIBLE_DEVICES": "0,1"}
    restore_devices(all_gpus)
    assert all_gpus == {"CUDA_VISIBLE_DEVICES": "0,1"}
