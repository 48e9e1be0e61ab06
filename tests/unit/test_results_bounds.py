"""Sweeps and bounds: from records to bus bandwidth, and to words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from rankbench.record import Layout
from rankbench.results.numbers.exchange import find_sweeps
from rankbench.results.numbers.found import read
from rankbench.results.numbers.summary import Summary
from rankbench.results.render.files import write_results
from rankbench.results.sections import bounds, collectives
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
    return list(read(layout).summaries)


def test_bus_bandwidth(tmp_path: Path) -> None:
    layout = summarise_one(tmp_path, collectives=sweep_of(latency=0, rate=2e9))
    (sweep,) = find_sweeps(summaries_of(layout))
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


def test_time_between_sizes_and_beyond_them(tmp_path: Path) -> None:
    layout = summarise_one(tmp_path, collectives=sweep_of(latency=0, rate=1e9))
    (sweep,) = find_sweeps(summaries_of(layout))
    for size in (2**10, 5 * 10**5, 2**24, 10**9):
        assert sweep.seconds_for(size) == pytest.approx(size / 1e9)


def test_sizes_that_a_launch_lacks_are_left_out(tmp_path: Path) -> None:
    layout = summarise_one(tmp_path, collectives=sweep_of())
    planned = synthetic.plan_cell(synthetic.make_cell("ddp", "1x2"))
    synthetic.write_launch(layout, planned, 7, wanted=7, collectives=sweep_of()[:2])
    (sweep,) = find_sweeps(summaries_of(layout))
    assert [point.size for point in sweep.points] == [2**10, 2**20]


def test_no_sweep_no_section(tmp_path: Path) -> None:
    layout = summarise_one(tmp_path)
    assert find_sweeps(summaries_of(layout)) == []
    write_results(read(layout))
    assert not layout.table("csv", "collectives").exists()
    assert not layout.plot("bandwidth", "svg").exists()


# In synthetic launches, input is 8 % and communication 12 % of a step of 160 ms.
STEP = 128 / 800


@pytest.mark.parametrize(
    ("seconds", "at_best"),
    [
        # The whole exchange fits behind the computation.
        (0.01, 1 / 0.88),
        # The exchange takes longer than the computation, so it alone sets the limit.
        (0.15, STEP / 0.15),
    ],
)
def test_what_overlap_could_give(
    tmp_path: Path, seconds: float, at_best: float
) -> None:
    swept = sweep_of(latency=0, rate=MODEL["parameter_bytes"] / seconds)
    layout = summarise_one(tmp_path, model=MODEL, collectives=swept)
    (bound,) = bounds.find_bounds(summaries_of(layout))
    assert bound.exchange_ms == pytest.approx(1e3 * seconds)
    assert bound.at_best == pytest.approx(at_best, rel=0.02)
    assert bound.name == "compute"
    shares = {name: ms / bound.step_ms for name, ms in bound.parts.items()}
    assert shares == pytest.approx(
        {"compute": 0.8, "communication": 0.12, "input": 0.08}
    )


def test_in_words(tmp_path: Path) -> None:
    layout = summarise_one(tmp_path, model=MODEL, collectives=sweep_of())
    (bound,) = bounds.find_bounds(summaries_of(layout))
    words = bounds.in_words(bound)
    assert words.startswith("compute-bound: of ")
    assert "80 % compute, 12 % wait for other ranks, 8 % wait for data." in words
    assert "The exchange of a step takes 4.1 ms by itself." in words
    assert "More overlap could make it at most 1.14 times as fast." in words


def test_communication_that_the_phases_hide(tmp_path: Path) -> None:
    layout = summarise_one(
        tmp_path,
        phases=["load", "forward", "backward", "update"],
        model=MODEL,
        collectives=sweep_of("all_gather", times=2, rate=4e7),
    )
    (bound,) = bounds.find_bounds(summaries_of(layout))
    assert bound.exchange_ms == pytest.approx(200, rel=0.01)
    assert (bound.name, bound.at_best) == ("communication", None)
    assert "do not separate communication from computation" in bounds.in_words(bound)


def test_idle_gpu(tmp_path: Path) -> None:
    devices = [{"utilisation_mean": 0.2}] * 2
    layout = summarise_one(tmp_path, devices=devices)
    (bound,) = bounds.find_bounds(summaries_of(layout))
    assert bound.name == "launch"
    assert sum(bound.parts.values()) == pytest.approx(bound.step_ms)
    # The device is idle for 80 % of the step; 20 % are waiting for data and other
    # ranks.
    assert bound.parts["launch"] / bound.step_ms == pytest.approx(0.6)


def test_files_and_plot(tmp_path: Path) -> None:
    layout = summarise_one(tmp_path, model=MODEL, collectives=sweep_of())
    write_results(read(layout))
    (row,) = pd.read_csv(layout.table("csv", "bounds")).to_dict("records")
    assert (row["bound"], row["at_best"]) == ("compute", pytest.approx(1.136))
    assert len(pd.read_csv(layout.table("csv", "collectives"))) == 3
    assert "## What bounds each cell" in layout.table("md").read_text()
    assert layout.plot("bandwidth", "svg").exists()
