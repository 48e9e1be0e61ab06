"""The numbers of launches, what a step is made of, and training curves."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from rankbench.record import Layout, complete
from rankbench.results.numbers import launches
from rankbench.results.numbers.launches import POINTS, find_curve, peak_memory
from rankbench.results.numbers.losses import Sweep, find_losses, find_sweeps
from rankbench.results.numbers.result_set import ResultSet, Summary, read
from rankbench.results.read.records import read_launch
from rankbench.results.render.files import write_results
from rankbench.results.sections import collectives, curves, losses
from unit import synthetic
from unit.synthetic import (
    BATCH,
    PHASES,
    STEPS,
    WARMUP,
    change_steps,
    edited,
    plan_cell,
    plan_one,
    write_launch,
    write_launches,
    write_plan,
)

pytestmark = pytest.mark.unit


@pytest.fixture
def launch_dir(tmp_path):
    """A launch of two ranks, 8 steps of 64 samples each, in 1.28 s."""
    return write_launch(*plan_one(tmp_path, "ddp", "1x2"), rate=800)


def measure(launch_dir) -> dict[str, Any]:
    (found,) = launches.measure([read_launch(launch_dir)])
    return found


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
    with edited(launch_dir / "record.json") as record:
        record["accuracy"] = None
    # The steps take 9001, 10, 31, 10, 31, 10, 31 and 10 ms.
    assert measure(launch_dir)["step_ms"] == pytest.approx(9134 / 8)
    assert measure(launch_dir)["accuracy"] is None


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
    steps, first = (np.zeros((len(own), len(PHASES))) for own in (timed, warmup))
    steps[:, 2], first[:, 2] = timed, warmup
    losses = np.zeros(len(warmup) + len(timed))
    members = {"seconds": steps, "warmup": first, "loss": losses}
    np.savez(directory / "steps.npz", **{f"rank0/{k}": v for k, v in members.items()})
    sizes = {"steps": len(timed), "warmup": len(warmup), "samples": 64 * len(timed)}
    with edited(directory / "record.json") as record:
        rank = record["ranks"][0] | {"window_s": sum(timed) + 0.25}
        record |= {"ranks": [rank], **sizes}


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


def test_memory_is_cuda_where_there_is_any():
    cpu = {"memory": {"cuda_allocated_mib": None, "rss_peak_mib": 900.0}}
    gpu = {"memory": {"cuda_allocated_mib": 20.0, "rss_peak_mib": 5000.0}}
    for ranks, peak in (((cpu, cpu), 900), ((gpu, gpu), 20), ((cpu, gpu), 20)):
        assert peak_memory([*ranks]) == peak


# --- sweeps and losses: from records to bus bandwidth, and to what a step is made of --
MODEL = {"parameters": 10**6, "parameter_bytes": 4 * 10**6, "flops_per_sample": 10**7}


def sweep_of(latency: float = 1e-4, rate: float = 1e9) -> list[dict[str, Any]]:
    """A sweep in which a call takes the latency plus its bytes over the rate."""
    swept = {"operation": "all_reduce", "times_weights": 1}
    return [
        {**swept, "bytes": size, "seconds": [latency + size / rate] * 3}
        for size in (2**10, 2**20, 2**24)
    ]


def summarise_one(root: Path, **changes: Any) -> tuple[Layout, list[Sweep]]:
    layout, planned = plan_one(root, "ddp", "1x2")
    write_launches(layout, planned, **changes)
    return layout, [one for row in read(layout).rows for one in find_sweeps(row)]


def test_bus_bandwidth(tmp_path):
    layout, (sweep,) = summarise_one(tmp_path, collectives=sweep_of(0, rate=2e9))
    assert [point.size for point in sweep.points] == [2**10, 2**20, 2**24]
    for point in sweep.points:
        # With two ranks, each byte of an all-reduce crosses the link once.
        assert point.bus_gb_s.value == pytest.approx(2.0)
        assert point.bus_gb_s.low == pytest.approx(2.0)
    # The time between sizes, and beyond them.
    for size in (2**10, 5 * 10**5, 2**24, 10**9):
        assert sweep.seconds_for(size) == pytest.approx(size / 2e9)
    content = collectives.make(read(layout))
    assert content is not None
    frame = collectives.SECTION.frame(content)
    assert frame["us"].tolist() == pytest.approx([0.512, 524.288, 8388.608])
    assert frame["bus_gb_s_lo"].tolist() == pytest.approx([2.0] * 3)


def test_sizes_that_a_launch_lacks_are_left_out(tmp_path):
    layout, _ = summarise_one(tmp_path, collectives=sweep_of())
    planned = plan_cell("ddp", "1x2")
    write_launch(layout, planned, 7, wanted=7, collectives=sweep_of()[:2])
    (sweep,) = find_sweeps(read(layout).rows[0])
    assert [point.size for point in sweep.points] == [2**10, 2**20]


def test_no_sweep_no_section_and_without_a_base_no_losses(tmp_path):
    layout, sweeps = summarise_one(tmp_path)
    assert sweeps == find_losses([*read(layout).rows]) == []
    assert collectives.make(read(layout)) is None
    assert losses.make(read(layout)) is None


# --- what a step is made of -----------------------------------------------------------

OF_STEP = ["load", "forward", "backward", "communication", "update"]


def steps_of(*ranks: list[float], count: int = 5) -> np.ndarray:
    """Seconds of [ranks, steps, phases], of ranks whose steps are all alike."""
    return np.repeat(np.array(ranks)[:, None, :], count, axis=1)


def record_of(phases: list[str] = OF_STEP, **shape: int) -> dict[str, Any]:
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
    assert parts["is_separate"]
    # Ranks that share a replica communicate within the computation.
    shared = compose(steps_of(quick, slow), record_of(replica_ranks=2))
    assert not shared["is_separate"]


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


# --- losses against a base ------------------------------------------------------------


def write_two(root: Path, **changes: Any) -> Layout:
    """`single` on one device, and ddp on two that reaches half of its efficiency."""
    alone = [phase for phase in synthetic.PHASES if phase != "communication"]
    single, ddp = plan_cell("single", phases=alone), plan_cell("ddp", "1x2")
    layout = synthetic.write_plan(root, [single, ddp])
    # Both have 800 samples/s, so a step of ddp takes twice as long.
    write_launches(layout, single, rate=800)
    write_launches(layout, ddp, rate=800, **changes)
    return layout


def test_parts_add_up_to_what_is_lost(tmp_path):
    layout = write_two(tmp_path, model=MODEL, collectives=sweep_of())
    found = read(layout)
    (loss,) = find_losses([*found.rows])
    assert loss.step == pytest.approx(160, rel=0.02)
    assert loss.promised == pytest.approx(80, rel=0.02)
    assert loss.lost.value == pytest.approx(80, rel=0.05)
    total = sum(part.value for part in loss.parts.values())
    assert total == pytest.approx(loss.lost.value)
    # 12 % of a step communicates; its bytes take 4.1 ms.
    assert loss.exchange == pytest.approx(4.1, rel=0.01)
    assert loss.parts["transfer"].value == pytest.approx(4.1, rel=0.01)
    assert loss.is_certain
    write_results(found, plots=False)
    (row,) = pd.read_csv(layout.section("losses")).to_dict("records")
    assert row["transfer_ms"] == pytest.approx(4.1, rel=0.01)
    assert len(pd.read_csv(layout.section("collectives"))) == 3
    assert "<summary>Why not further</summary>" in layout.report.read_text()
    (bandwidth,) = collectives.make(found).drawings
    assert bandwidth.name == "bandwidth"
    assert bandwidth.draw(8).axes


def test_launches_of_other_rounds_are_not_compared(tmp_path):
    assert find_losses([*read(write_two(tmp_path, round=None)).rows]) == []


# --- training curves: what is drawn ---------------------------------------------------
ALL = WARMUP + STEPS
DDP = "ddp.gloo.1x2.convnet.digits"


def set_losses(directory: Path, *ranks: Any) -> None:
    """Losses of the ranks, in place of those of a launch."""
    arrays = {f"rank{n}_loss": np.float32(own) for n, own in enumerate(ranks)}
    change_steps(directory, **arrays)


def write_long(root: Path, losses: np.ndarray) -> ResultSet:
    """A launch of `single` without a warm-up, with a step for each loss."""
    layout, planned = plan_one(root, "single")
    steps = {"steps": len(losses), "warmup": 0, "samples": len(losses) * BATCH}
    place = write_launch(layout, planned, wanted=1, **steps)
    seconds = np.full((len(losses), 6), 0.01)
    change_steps(place, rank0_seconds=seconds, rank0_warmup=np.empty((0, 6)))
    set_losses(place, losses)
    return read(layout)


def find(root: Path, *launches: Any) -> ResultSet:
    """ddp on two ranks: for each launch the losses of both."""
    layout, planned = plan_one(root, "ddp", "1x2")
    for number, ranks in enumerate(launches, start=1):
        place = write_launch(layout, planned, number, wanted=len(launches))
        set_losses(place, *ranks)
    return read(layout)


def point_of(root: Path, *launches: Any) -> Summary:
    (point,) = find(root, *launches).rows
    return point


def draw_curves(found: ResultSet) -> tuple[Figure, pd.DataFrame]:
    """Losses over samples, and beside them over seconds; what the CSV file has."""
    content = curves.SECTION.make(found)
    assert content
    (drawing,) = content.drawings
    return drawing.draw(8), curves.SECTION.frame(content)


def test_a_loss_is_the_mean_over_the_ranks_that_know_it(tmp_path):
    falling, nan = np.linspace(2, 1, ALL), np.full(ALL, np.nan)
    diverged = np.where(np.arange(ALL) < 4, 1, np.nan)
    for place, ranks, mean in (
        ("both", (falling, falling + 1), falling + 0.5),
        ("last", (nan, falling), falling),
        # A loss that is no number on one rank is none.
        ("diverged", (np.ones(ALL), diverged), diverged),
    ):
        (losses,) = point_of(tmp_path / place, ranks).launches["losses"]
        assert losses == pytest.approx(mean, nan_ok=True)


def test_a_curve_is_over_the_samples_of_all_replicas(tmp_path):
    seen, losses = find_curve(
        point_of(tmp_path, *[(np.full(ALL, k),) * 2 for k in (1, 3)])
    )
    assert seen.tolist() == [2 * BATCH * (step + 1) for step in range(ALL)]
    assert losses.tolist() == [[1.0] * ALL, [3.0] * ALL]


def test_many_steps_become_means(tmp_path):
    (point,) = write_long(tmp_path, np.arange(3 * POINTS)).rows
    seen, ((first, second, *_),) = find_curve(point)
    assert len(seen) == POINTS
    # Means of three steps, 1, 4, 7 and so on, and then of the points around each.
    assert (first, second) == (np.mean([1, 4, 7, 10, 13, 16]), np.mean(range(1, 20, 3)))
    assert seen[0] == 2 * BATCH


def test_curves_show_the_median_and_the_range_of_launches(tmp_path):
    found = find(tmp_path, *[(np.full(ALL, k),) * 2 for k in (1, 2, 6)])
    axes, _ = draw_curves(found)[0].axes
    (line,) = axes.get_lines()
    assert set(line.get_ydata()) == {2.0}
    (band,) = axes.collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (1.0, 6.0)
    assert axes.get_ylim()[0] == 0


def count_pixels(figure: Figure, color: Any) -> int:
    """How much of the picture, drawn finely, has exactly this color."""
    figure.set_dpi(200)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[..., :3]
    return int((pixels == np.round(255 * np.array(to_rgb(color)))).all(axis=-1).sum())


@pytest.mark.parametrize(("off_by", "alike"), [(1.0, True), (1.01, True), (1.5, False)])
def test_curves_that_coincide_share_one_line_in_all_colors(tmp_path, off_by, alike):
    cells = [plan_cell("single"), plan_cell("ddp")]
    layout = write_plan(tmp_path, cells)
    for planned, factor in zip(cells, (1, off_by), strict=True):
        losses = np.linspace(2, 1, ALL) * factor
        set_losses(write_launch(layout, planned, wanted=1), losses)
    figure, _ = draw_curves(read(layout))
    axes, over_time = figure.axes
    lines = axes.get_lines()
    assert [line.is_dashed() for line in lines] == [alike, alike]
    assert len({line.get_linewidth() for line in lines}) == 1
    # The names beside the other axes show both colors anyway, and words are grey.
    over_time.remove()
    axes.axis("off")
    axes.set_title("", loc="left")
    below, above = (count_pixels(figure, line.get_color()) for line in lines)
    assert above > 200
    assert below == pytest.approx(above, rel=0.25)


def test_a_drawn_point_is_the_mean_of_the_points_around_it(tmp_path):
    # The loss of every other step is three times as large.
    figure, frame = draw_curves(write_long(tmp_path, np.resize([1.0, 3.0], 100)))
    (line,) = figure.axes[0].get_lines()
    assert len(line.get_ydata()) == 100
    assert np.abs(line.get_ydata() - 2).max() < 0.2
    assert frame["loss"].tolist() == line.get_ydata().tolist()


def test_the_same_losses_over_time(tmp_path):
    layout, planned = plan_one(tmp_path, "single")
    # 8 timed steps of 64 samples in 0.64 s.
    set_losses(write_launch(layout, planned, wanted=1, rate=800), np.arange(ALL))
    figure, frame = draw_curves(read(layout))
    _, axes = figure.axes
    line, *_ = axes.get_lines()
    expected = pytest.approx(0.08 * np.arange(1, ALL + 1))
    assert line.get_xdata() == expected
    assert frame["seconds"].tolist() == expected
    assert line.get_ydata().tolist() == list(range(ALL))
    assert "seconds" in axes.get_xlabel()


def test_losses_that_fall_far_are_logarithmic(tmp_path):
    falling = np.geomspace(2, 1e-4, ALL)
    figure, _ = draw_curves(find(tmp_path, (falling, falling)))
    assert figure.axes[0].get_yscale() == "log"


def test_training_without_a_loss_has_no_plot_and_warns_of_nothing(tmp_path):
    nan = np.full(ALL, np.nan)
    found = find(tmp_path, (nan, nan), (nan, nan))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert curves.SECTION.make(found) is None
