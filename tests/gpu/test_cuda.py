"""The same worker on a CUDA device: events, memory, NCCL, ranks that share a GPU.

One GPU is enough. Snakemake is not needed: the cells are launched as its jobs do it.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from factories import make_shape
from gpu.cells import measure
from rankbench.launch.process.gpu_usage import open_devices
from rankbench.record import Layout

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

EXPERIMENT = """
name: gpu
strategy: [single, dp, ddp, pipeline, rpc_pmp]
backend: [gloo, nccl]
topology: [1x1, 1x2]
model: resnet18
data: synthetic
image_size: 64
channels: 3
batch_size: 32
precision: [fp32, tf32, bf16]
oversubscribe: true
launches: 1
steps: 20
warmup: 5
evaluate: true
backend_logs: true
"""


# Options that one GPU can run, in a world of one rank over NCCL.
OPTIONS = """
name: gpu-options
strategy:
  - single
  - ddp: {sync_bn: true}
  - ddp: {compression: [fp16, bf16, powersgd]}
  - ddp: {accumulation: 2}
  - zero1
  - fsdp
  - ddp_dp
  - horovod
  - deepspeed
backend: nccl
model: resnet18
data: synthetic
image_size: 64
channels: 3
batch_size: 32
launches: 1
steps: 10
warmup: 5
"""

ARITHMETIC = """
name: gpu-arithmetic
strategy: [single, ddp]
backend: nccl
model: resnet18
data: synthetic
image_size: 64
channels: 3
batch_size: 32
precision: [fp32, tf32, bf16, fp16]
channels_last: [false, true]
compile: [false, true]
exclude: ["compile=true channels_last=false", "compile=true precision=fp32,tf32"]
launches: 1
steps: 10
warmup: 5
"""

HEADS = """
name: gpu-heads
strategy: [single, tp]
backend: nccl
model: transformer
data: synthetic
image_size: 32
channels: 3
batch_size: 32
precision: [fp32, bf16]
launches: 1
steps: 10
warmup: 5
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Layout, dict]:
    return keep(measure(tmp_path_factory.mktemp("gpu"), EXPERIMENT))


def keep(found: tuple[Layout, dict]) -> tuple[Layout, dict]:
    """Copy the results to where people look for them."""
    shutil.copytree(found[0].root, Path("results/gpu-tests"), dirs_exist_ok=True)
    return found


def record_of(layout: Layout, cell: str) -> dict:
    return json.loads((layout.launch(cell, 1, 1) / "record.json").read_text())


def cell_id(strategy: str, backend: str, topology: str, precision: str = "fp32") -> str:
    parts = [strategy, backend, topology, "resnet18.synthetic.image_size=64.channels=3"]
    parts.append("batch_size=32")
    if precision != "fp32":
        parts.append(f"precision={precision}")
    return ".".join([*parts, "oversubscribe=true"])


def test_all_that_is_feasible_is_measured(measured):
    _, verdicts = measured
    states = {cell: v.status for cell, v in verdicts.items() if v is not None}
    assert set(states.values()) == {"ok"}, {
        cell: (v.status, v.reason) for cell, v in verdicts.items() if v
    }
    assert cell_id("single", "none", "1x1") in states
    assert cell_id("ddp", "nccl", "1x1") in states
    assert cell_id("ddp", "gloo", "1x2") in states


def test_phases_come_from_the_device_and_close_to_the_window(measured):
    layout, _ = measured
    cell = cell_id("single", "none", "1x1")
    record = record_of(layout, cell)
    with np.load(layout.launch(cell, 1, 1) / "steps.npz") as steps:
        seconds = steps["rank0/seconds"]
    assert seconds.shape == (20, len(record["phases"]))
    window = record["ranks"][0]["window_s"]
    assert 0.9 * window <= seconds.sum() <= 1.01 * window


def test_memory_is_told_three_ways(measured):
    layout, _ = measured
    memory = record_of(layout, cell_id("single", "none", "1x1"))["ranks"][0]["memory"]
    parameters = 11_000_000 * 4 / 2**20  # The size of resnet18 in float32, in MiB.
    assert 2 * parameters < memory["cuda_allocated_mib"]
    assert memory["cuda_allocated_mib"] <= memory["cuda_reserved_mib"]
    assert memory["cuda_reserved_mib"] <= memory["cuda_device_used_mib"]


def test_nccl_on_one_device(measured):
    layout, _ = measured
    record = record_of(layout, cell_id("ddp", "nccl", "1x1"))
    assert record["transport"]["backend"] == "nccl"
    assert record["software"]["nccl"]
    (seen,) = record["transport"]["seen"]
    assert seen["ranks"] == [0]
    assert seen["libraries"]["nccl"]["version"].startswith(record["software"]["nccl"])
    assert seen["libraries"]["nccl"]["network"]
    assert "communication" in record["phases"]


def test_nvml_tells_how_busy_a_gpu_is():
    pytest.importorskip("pynvml")
    devices = open_devices(make_shape(1), os.environ)
    assert devices
    matrix = torch.rand(8192, 8192, device="cuda")
    until = time.monotonic() + 3
    while time.monotonic() < until:
        torch.mm(matrix, matrix)
        torch.cuda.synchronize()
    devices.sample()
    (gpu,) = devices.describe()
    assert gpu["name"] == torch.cuda.get_device_name(0)
    assert gpu["utilisation_max"] > 0.5
    assert gpu["memory_peak_mib"] > 2 * 8192**2 * 4 / 2**20


@pytest.mark.skipif(torch.cuda.device_count() > 1, reason="needs exactly one GPU")
def test_two_ranks_share_a_gpu_over_gloo_only(measured):
    layout, verdicts = measured
    record = record_of(layout, cell_id("ddp", "gloo", "1x2"))
    assert [rank["device"] for rank in record["ranks"]] == ["cuda:0", "cuda:0"]
    assert record["marks"] == ["oversubscribed"]
    assert verdicts[cell_id("ddp", "nccl", "1x2")] is None
    assert verdicts[cell_id("dp", "none", "1x2")] is None


def test_every_way_of_training_learns_the_same(measured):
    layout, _ = measured
    single = record_of(layout, cell_id("single", "none", "1x1"))["loss"]["first"]
    for backend in ("nccl", "gloo"):
        other = record_of(layout, cell_id("ddp", backend, "1x1"))["loss"]["first"]
        assert other == pytest.approx(single, rel=0.05)


@pytest.mark.parametrize("text", [OPTIONS, ARITHMETIC, HEADS])
def test_options_learn_about_the_same(text, tmp_path):
    """The first timed loss, which a few steps of training lie before."""
    layout, verdicts = keep(measure(tmp_path, text))
    # Without a C++ compiler the compiled cells cannot run.
    ran = {cell: verdict for cell, verdict in verdicts.items() if verdict}
    failed = {cell: v.reason for cell, v in ran.items() if v.status != "ok"}
    assert not failed
    losses = {cell: record_of(layout, cell)["loss"]["first"] for cell in ran}
    exact = next(loss for cell, loss in losses.items() if cell.startswith("single"))
    assert losses == pytest.approx(dict.fromkeys(losses, exact), rel=0.2)


def test_a_phase_of_the_device_that_comes_again_adds_up():
    from rankbench.rank.training.clock import CudaClock

    clock = CudaClock(["forward", "backward"], 2)
    for step in range(2):
        clock.begin(step)
        for _ in range(3):
            clock.mark("forward")
            torch.cuda._sleep(10_000_000)
            clock.mark("backward")
            clock.mark("backward")
    clock.finish()
    seconds = clock.seconds()
    assert (seconds[:, 1] > 0.01).all()
    assert (seconds[:, 0] < 0.002).all()


def test_work_on_the_device_counts_where_it_was_asked_for():
    """The host is long done with a phase when the device still works on it."""
    from rankbench.rank.training.clock import CudaClock

    clock = CudaClock(["idle", "busy"], 3)
    torch.cuda.synchronize()
    for step in range(3):
        clock.begin(step)
        clock.mark("idle")
        # A number of cycles that takes tens of milliseconds.
        torch.cuda._sleep(100_000_000)
        clock.mark("busy")
    clock.finish()
    seconds = clock.seconds()
    assert (seconds[:, 1] > 0.02).all()
    assert (seconds[:, 0] < 0.002).all()
    assert clock.host_start()[-1] < seconds.sum() / 2


def test_a_planted_delay_of_the_device_is_found_as_exposed_communication(tmp_path):
    """NCCL on one rank, with a hook that keeps the device busy before it reduces."""
    from torch import distributed, nn

    from rankbench.rank.strategies.base import World
    from rankbench.rank.strategies.ddp import Ddp
    from rankbench.rank.training.clock import CudaClock

    cycles = 100_000_000
    device = torch.device("cuda", 0)
    distributed.init_process_group(
        "nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    try:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        torch.cuda._sleep(cycles)
        end.record()
        torch.cuda.synchronize()
        delay = start.elapsed_time(end) * 1e-3

        def busy(state, bucket):
            torch.cuda._sleep(cycles)
            work = distributed.all_reduce(bucket.buffer(), async_op=True)
            return work.get_future().then(lambda done: done.value()[0])

        medians = []
        for hook in (None, busy):
            world = World(0, 1, 0, device, (device,), "nccl", 8)
            options = {name: rule["default"] for name, rule in Ddp.options.items()}
            ddp = Ddp(world, lambda model, x: model(x[0]).square().mean(), **options)
            model = nn.Linear(512, 512).to(device)
            ddp.setup(model, lambda p: torch.optim.SGD(p, lr=0.01))
            if hook:
                ddp.model.register_comm_hook(None, hook)
            clock = CudaClock(["load", "transfer", *Ddp.phases], 10)
            batch = (torch.randn(64, 512, device=device), torch.zeros(64))
            for step in range(10):
                clock.begin(step)
                clock.mark("load")
                clock.mark("transfer")
                ddp.step(batch, clock.mark)
            clock.finish()
            column = 2 + Ddp.phases.index("communication")
            medians.append(float(np.median(clock.seconds()[:, column])))
        assert medians[1] - medians[0] == pytest.approx(delay, rel=0.1)
    finally:
        distributed.destroy_process_group()
