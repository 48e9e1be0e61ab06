"""Sweeps and losses: from records to bus bandwidth, and to what a step is made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rankbench.record import Layout, complete
from rankbench.results.numbers import launches
from rankbench.results.numbers.losses import Sweep, find_losses, find_sweeps
from rankbench.results.numbers.result_set import Summary, read
from rankbench.results.render.files import write_results
from rankbench.results.sections import collectives, losses
from unit import synthetic

pytestmark = pytest.mark.unit

MODEL = {
    "parameters": 10**6,
    "parameter_bytes": 4 * 10**6,
    "flops_per_sample": 10**7,
}


def sweep_of(
    operation: str = "all_reduce",
    *,
    times: float | None = 1,
    latency: float = 1e-4,
    rate: float = 1e9,
) -> list[dict[str, Any]]:
    """A sweep in which a call takes the latency plus its bytes over the rate."""
    return [
        {
            "operation": operation,
            "times_weights": times,
            "bytes": size,
            "seconds": [latency + size / rate] * 3,
        }
        for size in (2**10, 2**20, 2**24)
    ]


def summarise_one(root: Path, *, phases: list[str] | None = None, **changes) -> Layout:
    planned = synthetic.plan_cell(
        synthetic.make_cell("ddp", "1x2"), phases=phases or synthetic.PHASES
    )
    layout = synthetic.write_plan(root, [planned])
    synthetic.write_launches(layout, planned, **changes)
    return layout


def summaries_of(layout: Layout) -> list[Summary]:
    return list(read(layout).rows)


def sweeps_of(layout: Layout) -> list[Sweep]:
    return [sweep for row in summaries_of(layout) for sweep in find_sweeps(row)]


def test_bus_bandwidth(tmp_path):
    layout = summarise_one(tmp_path, collectives=sweep_of(latency=0, rate=2e9))
    (sweep,) = sweeps_of(layout)
    assert [point.size for point in sweep.points] == [2**10, 2**20, 2**24]
    for point in sweep.points:
        # With two ranks, each byte of an all-reduce crosses the link once.
        assert point.bus_gb_s.value == pytest.approx(2.0)
        assert point.bus_gb_s.low == pytest.approx(2.0)
    content = collectives.make(read(layout))
    assert content is not None
    frame = collectives.SECTION.frame(content)
    assert list(frame.columns) == [
        "cell",
        "operation",
        "bytes",
        *("us", "us_lo", "us_hi"),
        *("bus_gb_s", "bus_gb_s_lo", "bus_gb_s_hi"),
    ]
    assert frame["us"].tolist() == pytest.approx([0.512, 524.288, 8388.608])


def test_time_between_sizes_and_beyond_them(tmp_path):
    layout = summarise_one(tmp_path, collectives=sweep_of(latency=0, rate=1e9))
    (sweep,) = sweeps_of(layout)
    for size in (2**10, 5 * 10**5, 2**24, 10**9):
        assert sweep.seconds_for(size) == pytest.approx(size / 1e9)


def test_sizes_that_a_launch_lacks_are_left_out(tmp_path):
    layout = summarise_one(tmp_path, collectives=sweep_of())
    planned = synthetic.plan_cell(synthetic.make_cell("ddp", "1x2"))
    synthetic.write_launch(layout, planned, 7, wanted=7, collectives=sweep_of()[:2])
    (sweep,) = sweeps_of(layout)
    assert [point.size for point in sweep.points] == [2**10, 2**20]


def test_no_sweep_no_section(tmp_path):
    layout = summarise_one(tmp_path)
    assert sweeps_of(layout) == []
    assert collectives.make(read(layout)) is None


# --- what a step is made of -----------------------------------------------------------

PHASES = ["load", "forward", "backward", "communication", "update"]


def steps_of(*ranks: list[float], count: int = 5) -> np.ndarray:
    """Seconds of [ranks, steps, phases], of ranks whose steps are all alike."""
    return np.repeat(np.array(ranks)[:, None, :], count, axis=1)


def record_of(phases: list[str] = PHASES, **shape: int) -> dict[str, Any]:
    return {"phases": phases, "ranks": [{}, {}], "shape": {"replica_ranks": 1, **shape}}


def compose(steps: np.ndarray, record: dict[str, Any]) -> dict[str, Any]:
    """What the mean step of one launch is made of."""
    columns = launches.compose(steps[None], [complete(record)])
    return {name: value for name, (value,) in columns.items()}


def test_one_process_computes_and_loads():
    parts = compose(steps_of([0.01, 0.02, 0.03, 0, 0.01]), record_of())
    assert parts["step_ms"] == pytest.approx(70)
    assert (parts["input"], parts["computation"]) == pytest.approx((10, 60))
    assert (parts["waiting"], parts["exchange"], parts["host"]) == (0, 0, 0)
    assert parts["late"] is None


def test_a_slow_rank_is_waited_for():
    quick, slow = [0.01, 0.02, 0.03, 0.03, 0.01], [0.01, 0.02, 0.05, 0.01, 0.01]
    parts = compose(steps_of(quick, slow), record_of())
    # The quick rank is typical: all that the slow one needs longer is waiting.
    assert (parts["input"], parts["computation"]) == pytest.approx((10, 60))
    assert (parts["waiting"], parts["exchange"]) == pytest.approx((20, 10))
    assert parts["late"] == (1, "backward")
    assert parts["step_ms"] == pytest.approx(100)


def test_ranks_that_are_slow_in_turn_are_waited_for():
    steps = steps_of([0, 0.02, 0.03, 0.02, 0], [0, 0.02, 0.03, 0.02, 0], count=4)
    steps[0, ::2, 1] += 0.02
    steps[0, ::2, 3] -= 0.02
    steps[1, 1::2, 1] += 0.02
    steps[1, 1::2, 3] -= 0.02
    parts = compose(steps, record_of())
    assert parts["waiting"] == pytest.approx(10)
    assert parts["exchange"] == pytest.approx(0)


def test_a_pipeline_waits_for_its_stages():
    phases = ["load", "pipeline", "update"]
    record = record_of(phases, replica_ranks=2)
    record["ranks"] = [{"details": {"bubble": share}} for share in (0.25, 0.75)]
    parts = compose(steps_of([0, 0.1, 0.01], [0, 0.1, 0.01]), record)
    assert (parts["waiting"], parts["computation"]) == pytest.approx((50, 60))
    assert parts["is_separate"]


def test_an_idle_gpu_is_the_host():
    record = record_of()
    record["devices"] = [{"utilisation_mean": 0.2}] * 2
    rank = [0.01, 0.02, 0.05, 0.01, 0.01]
    parts = compose(steps_of(rank, rank), record)
    # Idle for 80 of 100 ms, of which 10 ms are waiting for data.
    assert (parts["host"], parts["computation"]) == pytest.approx((70, 10))


def test_ranks_that_share_a_replica_communicate_within_the_computation():
    rank = [0, 0.02, 0.05, 0, 0.01]
    assert not compose(steps_of(rank, rank), record_of(replica_ranks=2))["is_separate"]


# --- losses against a base ------------------------------------------------------------


def write_two(root: Path, **changes: Any) -> Layout:
    """`single` on one device, and ddp on two that reaches half of its efficiency."""
    alone = [phase for phase in synthetic.PHASES if phase != "communication"]
    single = synthetic.plan_cell(synthetic.make_cell("single"), phases=alone)
    ddp = synthetic.plan_cell(synthetic.make_cell("ddp", "1x2"))
    layout = synthetic.write_plan(root, [single, ddp])
    # Both have 800 samples/s, so a step of ddp takes twice as long.
    synthetic.write_launches(layout, single, rate=800)
    synthetic.write_launches(layout, ddp, rate=800, **changes)
    return layout


def test_parts_add_up_to_what_is_lost(tmp_path):
    layout = write_two(tmp_path, model=MODEL, collectives=sweep_of())
    (loss,) = find_losses(summaries_of(layout))
    assert loss.step == pytest.approx(160, rel=0.02)
    assert loss.promised == pytest.approx(80, rel=0.02)
    assert loss.lost.value == pytest.approx(80, rel=0.05)
    total = sum(part.value for part in loss.parts.values())
    assert total == pytest.approx(loss.lost.value)
    # 12 % of a step communicates; its bytes take 4.1 ms.
    assert loss.exchange == pytest.approx(4.1, rel=0.01)
    assert loss.parts["transfer"].value == pytest.approx(4.1, rel=0.01)
    assert loss.is_certain


def test_launches_of_other_rounds_are_not_compared(tmp_path):
    assert find_losses(summaries_of(write_two(tmp_path, round=None))) == []


def test_without_a_base_nothing_is_said(tmp_path):
    assert find_losses(summaries_of(summarise_one(tmp_path))) == []
    assert losses.make(read(Layout(tmp_path))) is None


def test_files_and_plot(tmp_path):
    layout = write_two(tmp_path, model=MODEL, collectives=sweep_of())
    write_results(read(layout), plots=False)
    (row,) = pd.read_csv(layout.section("losses")).to_dict("records")
    assert row["transfer_ms"] == pytest.approx(4.1, rel=0.01)
    assert len(pd.read_csv(layout.section("collectives"))) == 3
    assert "<summary>Why not further</summary>" in layout.report.read_text()
    (bandwidth,) = collectives.make(read(layout)).drawings
    assert bandwidth.name == "bandwidth"
    assert bandwidth.draw(8).axes
