"""Training curves: what is drawn."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from rankbench.results.numbers.launches import POINTS, find_curve
from rankbench.results.numbers.result_set import ResultSet, Summary, read
from rankbench.results.sections import curves
from unit.synthetic import (
    BATCH,
    STEPS,
    WARMUP,
    change_steps,
    make_cell,
    plan_cell,
    plan_one,
    write_launch,
    write_plan,
)

pytestmark = pytest.mark.unit

ALL = WARMUP + STEPS
DDP = "ddp.gloo.1x2.convnet.digits"


def set_losses(directory: Path, *ranks: Any) -> None:
    """Losses of the ranks, in place of those of a launch."""
    arrays = [np.asarray(losses, dtype=np.float32) for losses in ranks]
    change_steps(directory, **{f"rank{n}_loss": one for n, one in enumerate(arrays)})


def write_long(root: Path, losses: np.ndarray) -> ResultSet:
    """A launch of `single` without a warm-up, with a step for each loss."""
    layout, planned = plan_one(root, "single")
    steps = {"steps": len(losses), "warmup": 0, "samples": len(losses) * BATCH}
    place = write_launch(layout, planned, wanted=1, **steps)
    with np.load(place / "steps.npz") as members:
        seconds = np.resize(members["rank0/seconds"], (len(losses), 6))
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


def draw_curves(found: ResultSet) -> Figure:
    """Losses over samples, and beside them over seconds."""
    content = curves.SECTION.make(found)
    assert content
    (drawing,) = content.drawings
    return drawing.draw(8)


def test_a_loss_is_the_mean_over_the_ranks_that_know_it(tmp_path):
    falling, nan = np.linspace(2, 1, ALL), np.full(ALL, np.nan)
    place = tmp_path / "both"
    (losses,) = point_of(place, (falling, falling + 1)).launches["losses"]
    assert losses == pytest.approx(falling + 0.5)
    (losses,) = point_of(tmp_path / "last", (nan, falling)).launches["losses"]
    assert losses == pytest.approx(falling)


def test_a_loss_that_is_no_number_on_one_rank_is_none(tmp_path):
    losses = np.ones(ALL)
    diverged = np.where(np.arange(ALL) < 4, 1, np.nan)
    (losses,) = point_of(tmp_path, (losses, diverged)).launches["losses"]
    assert np.isnan(losses).tolist() == [False] * 4 + [True] * (ALL - 4)


def test_losses_of_another_length_are_damage(tmp_path):
    reason = point_of(tmp_path, (np.ones(ALL), np.ones(3))).reason
    assert re.search(r"steps\.npz is damaged: .* of shape \(10,\)", str(reason))


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
    axes, _ = draw_curves(found).axes
    (line,) = axes.get_lines()
    assert set(line.get_ydata()) == {2.0}
    (band,) = axes.collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (1.0, 6.0)
    assert axes.get_ylim()[0] == 0


def test_curves_of_cells_with_one_base_share_a_panel(tmp_path):
    cells = [
        plan_cell(make_cell(strategy, "1x1", model=model))
        for model in ("convnet", "lenet")
        for strategy in ("single", "ddp")
    ]
    layout = write_plan(tmp_path, cells)
    for planned in cells:
        write_launch(layout, planned, wanted=1)
    first, _, second, _ = draw_curves(read(layout)).axes
    assert len(first.get_lines()) == len(second.get_lines()) == 2
    assert first.get_lines()[0].get_color() == second.get_lines()[0].get_color()
    assert not first.collections


def count_pixels(figure: Figure, color: Any) -> int:
    """How much of the picture, drawn finely, has exactly this color."""
    figure.set_dpi(200)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[..., :3]
    return int((pixels == np.round(255 * np.array(to_rgb(color)))).all(axis=-1).sum())


@pytest.mark.parametrize(("off_by", "alike"), [(1.0, True), (1.01, True), (1.5, False)])
def test_curves_that_coincide_share_one_line_in_all_colors(tmp_path, off_by, alike):
    cells = [plan_cell(make_cell(strategy, "1x1")) for strategy in ("single", "ddp")]
    layout = write_plan(tmp_path, cells)
    for planned, factor in zip(cells, (1, off_by), strict=True):
        losses = np.linspace(2, 1, ALL) * factor
        set_losses(write_launch(layout, planned, wanted=1), losses)
    figure = draw_curves(read(layout))
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
    found = write_long(tmp_path, np.resize([1.0, 3.0], 100))
    axes, _ = draw_curves(found).axes
    (line,) = axes.get_lines()
    assert len(line.get_ydata()) == 100
    assert np.abs(line.get_ydata() - 2).max() < 0.2
    # The CSV file has what is drawn.
    content = curves.SECTION.make(found)
    assert content
    frame = curves.SECTION.frame(content)
    assert frame["loss"].tolist() == line.get_ydata().tolist()


def test_the_same_losses_over_time(tmp_path):
    layout, planned = plan_one(tmp_path, "single")
    # 8 timed steps of 64 samples in 0.64 s.
    set_losses(write_launch(layout, planned, wanted=1, rate=800), np.arange(ALL))
    found = read(layout)
    _, axes = draw_curves(found).axes
    line, *_ = axes.get_lines()
    expected = 0.08 * np.arange(1, ALL + 1)
    assert line.get_xdata() == pytest.approx(expected)
    assert line.get_ydata().tolist() == list(range(ALL))
    assert "seconds" in axes.get_xlabel()
    content = curves.SECTION.make(found)
    assert content
    frame = curves.SECTION.frame(content)
    assert frame["seconds"].tolist() == pytest.approx(expected)


def test_losses_that_fall_far_are_logarithmic(tmp_path):
    falling = np.geomspace(2, 1e-4, ALL)
    axes, _ = draw_curves(find(tmp_path, (falling, falling))).axes
    assert axes.get_yscale() == "log"


def test_training_without_a_loss_has_no_plot_and_warns_of_nothing(tmp_path):
    nan = np.full(ALL, np.nan)
    found = find(tmp_path, (nan, nan), (nan, nan))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert curves.SECTION.make(found) is None
