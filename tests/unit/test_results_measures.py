"""The numbers of one launch, and damaged steps."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from rankbench.results.numbers import launches
from rankbench.results.numbers.launches import peak_memory
from rankbench.results.read.records import read_launch
from unit.synthetic import (
    PHASES,
    STEPS,
    change_steps,
    edited,
    make_cell,
    plan_cell,
    write_launch,
    write_plan,
)

pytestmark = pytest.mark.unit


@pytest.fixture
def launch_dir(tmp_path):
    """A launch of two ranks, 8 steps of 64 samples each, in 1.28 s."""
    planned = plan_cell(make_cell("ddp", "1x2"))
    return write_launch(write_plan(tmp_path, [planned]), planned, rate=800)


def measure(launch_dir) -> dict[str, Any]:
    (found,) = launches.measure([read_launch(launch_dir)])
    return found


def change_record(launch_dir, **changes: Any) -> None:
    with edited(launch_dir / "record.json") as record:
        record |= changes


def test_rates_and_times_are_of_the_slowest_rank(launch_dir):
    found = measure(launch_dir)
    assert found["throughput"] == pytest.approx(800)
    assert found["total_s"] == pytest.approx(1.28)
    assert found["epoch_s"] == pytest.approx(1.28 * 4 / 8)
    assert found["step_ms"] == pytest.approx(1280 / 8)
    assert found["accuracy"] == 0.97
    assert found["torch"] == "2.13.0"


def test_a_step_lasts_until_its_slowest_rank_is_ready(launch_dir):
    first, second = np.zeros((2, STEPS, len(PHASES)))
    first[:, 2], second[:, 2] = 0.010, 0.001
    second[::2, 3] = 0.030  # Every other step waits for the other rank.
    second[0, 3] = 9.0
    change_steps(launch_dir, rank0_seconds=first, rank1_seconds=second)
    # The steps take 9001, 10, 31, 10, 31, 10, 31 and 10 ms.
    assert measure(launch_dir)["step_ms"] == pytest.approx(9134 / 8)


def test_phases_are_means_over_ranks_and_steps(launch_dir):
    first, second = np.zeros((2, STEPS, len(PHASES)))
    first[:, 0], second[:, 0] = 0.010, 0.030
    first[0, 5] = 0.080
    change_steps(launch_dir, rank0_seconds=first, rank1_seconds=second)
    found = measure(launch_dir)["phase_ms"]
    assert list(found) == PHASES
    assert found["load"] == pytest.approx(20)
    assert found["update"] == pytest.approx(80 / 8 / 2)
    assert found["forward"] == 0


def write_steps(directory, warmup, timed):
    """One rank whose steps are all `forward`, of so many seconds each."""
    shape = len(timed), len(PHASES)
    steps, first = np.zeros(shape), np.zeros((len(warmup), len(PHASES)))
    steps[:, 2], first[:, 2] = timed, warmup
    losses = np.zeros(len(warmup) + len(timed))
    members = {"seconds": steps, "warmup": first, "loss": losses}
    np.savez(directory / "steps.npz", **{f"rank0/{k}": v for k, v in members.items()})
    record = json.loads((directory / "record.json").read_text())
    rank = record["ranks"][0] | {"window_s": sum(timed) + 0.25}
    sizes = {"steps": len(timed), "warmup": len(warmup), "samples": 64 * len(timed)}
    change_record(directory, ranks=[rank], **sizes)


def test_a_warmup_that_lasts_longer_is_left_out(launch_dir):
    write_steps(launch_dir, [0.5] * 10, [0.2] * 30 + [0.1] * 70)
    found = measure(launch_dir)
    assert (found["warmup"], found["steady"]) == (40, True)
    assert found["step_ms"] == pytest.approx(100)
    assert found["step_p95_ms"] == pytest.approx(100)
    assert found["phase_ms"]["forward"] == pytest.approx(100)
    # Time of the window outside its steps stays part of the window.
    assert found["throughput"] == pytest.approx(64 * 70 / (7 + 0.25))
    assert found["epoch_s"] == pytest.approx((7 + 0.25) * 4 / 70)
    assert found["total_s"] == pytest.approx(6 + 7 + 0.25)


def test_without_a_steady_state_the_whole_window_counts(launch_dir):
    write_steps(launch_dir, [0.5] * 10, [0.2] * 70 + [0.1] * 30)
    found = measure(launch_dir)
    assert (found["warmup"], found["steady"]) == (10, False)
    assert found["throughput"] == pytest.approx(64 * 100 / (14 + 3 + 0.25))
    assert found["step_ms"] == pytest.approx(170)


def test_spread_of_steps_is_relative(launch_dir):
    write_steps(launch_dir, [], [0.098, 0.099, 0.1, 0.101, 0.102])
    assert measure(launch_dir)["step_spread"] == pytest.approx(0.02)


@pytest.mark.parametrize("window", [float("nan"), float("inf"), 0.0, -1.0])
def test_a_window_without_a_length_is_damage(launch_dir, window):
    record = json.loads((launch_dir / "record.json").read_text())
    change_record(launch_dir, ranks=[r | {"window_s": window} for r in record["ranks"]])
    with pytest.raises(ValueError, match="is damaged") as caught:
        measure(launch_dir)
    assert str(launch_dir) in str(caught.value)


def test_not_evaluated_has_no_accuracy(launch_dir):
    change_record(launch_dir, accuracy=None)
    assert measure(launch_dir)["accuracy"] is None


def test_memory_is_cuda_where_there_is_any():
    cpu = {"memory": {"cuda_allocated_mib": None, "rss_peak_mib": 900.0}}
    gpu = {"memory": {"cuda_allocated_mib": 20.0, "rss_peak_mib": 5000.0}}
    assert peak_memory([cpu, cpu]) == 900
    assert peak_memory([gpu, gpu]) == 20
    assert peak_memory([cpu, gpu]) == 20
