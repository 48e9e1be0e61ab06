"""The plots exist for every outcome, show all cells, and are reproducible."""

from __future__ import annotations

import re

import matplotlib
import pandas as pd
import pytest
from matplotlib.colors import to_rgb

from rankbench.record import PLOTS, Layout
from rankbench.results.elements.plotting import choose_styles
from rankbench.results.numbers.result_set import read
from rankbench.results.numbers.series import cut, make_panels
from rankbench.results.render.files import write_results
from rankbench.results.sections import load_sections
from unit.synthetic import (
    edited,
    plan_cell,
    write_cells,
    write_example,
    write_launch,
    write_launches,
    write_plan,
)

pytestmark = pytest.mark.unit

# Plots of an experiment with several topologies.
EVERY = (
    *("throughput", "per_device", "scaling", "cost", "communication"),
    *("phases", "curves"),
)
STARTS = {"png": b"\x89PNG", "svg": b"<?xml"}


def build(layout):
    """Draw all plots; settings of matplotlib are left alone."""
    before = dict(matplotlib.rcParams)
    write_results(read(layout))
    chosen = {"backend", "backend_fallback"}  # when it is first imported
    after = {k: v for k, v in matplotlib.rcParams.items() if k not in chosen}
    assert after.items() <= before.items()


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """Rows of every status, drawn."""
    layout = write_example(tmp_path_factory.mktemp("example"))
    build(layout)
    return layout


def panels_of(root, *cells):
    return make_panels(read(write_cells(root, *cells)).rows)


def drawings_of(found):
    """Name -> drawing, of all sections."""
    contents = [section.make(found) for section in load_sections().values()]
    return {
        one.name: one for content in contents if content for one in content.drawings
    }


def draw(root, name, *cells, rates=()):
    """A plot of these cells."""
    return drawings_of(read(write_cells(root, *cells, rates=rates)))[name].draw(6.4)


def lines_of(axes, **style):
    """Lines of a given style with more than one place on the x axis."""
    return [
        line
        for line in axes.get_lines()
        if len(set(line.get_xdata())) > 1
        and all(getattr(line, f"get_{name}")() == want for name, want in style.items())
    ]


def markers_of(axes):
    """Marker and color of each large marker within the axes."""
    return [
        (line.get_marker(), to_rgb(line.get_markeredgecolor()))
        for line in axes.get_lines()
        if line.get_markersize() == 5.5
    ]


def test_plots_exist_if_they_say_something(tmp_path, example):
    failed = {"status": "crashed", "reason": "it $broke$", "wanted": 1}
    nothing = write_plan(tmp_path, [plan_cell("single"), plan_cell("ddp", "1x2")])
    for planned in (plan_cell("single"), plan_cell("ddp", "1x2")):
        write_launch(nothing, planned, **failed)
    build(nothing)
    for layout, names in ((example, EVERY), (nothing, PLOTS)):
        files = {f"{name}.{suffix}" for name in names for suffix in STARTS}
        assert files == {path.name for path in (layout.root / "plots").iterdir()}
        for name in files:
            data = (layout.root / "plots" / name).read_bytes()
            assert data.startswith(STARTS[name.rpartition(".")[2]])
    drawing = drawings_of(read(nothing))["throughput"]
    texts = [text.get_text() for text in drawing.draw(8).texts]
    assert "No cell of quickstart is ok" in texts[0]
    assert texts[1] == "2 crashed"


def test_sections_have_the_data_of_their_plots(example):
    cell = "ddp.gloo.1x2.convnet.digits"
    scaling, phases, curves = (
        pd.read_csv(example.section(name)).set_index("cell").loc[cell]
        for name in ("scaling", "phases", "curves")
    )
    expected = {"per_device": 750, "ideal": 800, "over_one_device": 1500 / 800}
    expected |= {"hours": 1e6 / 1500 / 3600, "device_hours": 2e6 / 1500 / 3600}
    for name, value in expected.items():
        assert scaling[name] == pytest.approx(value, rel=0.02)
    low, high = (scaling[f"over_one_device_{end}"] for end in ("lo", "hi"))
    assert low < scaling["over_one_device"] < high
    # The parts are the step of the table.
    step = pd.read_csv(example.table("csv")).set_index("cell").loc[cell, "step_ms"]
    parts = re.findall(r" ([\d.]+)(?:;|$)", phases["phases_ms"])
    assert sum(map(float, parts)) == pytest.approx(step, rel=1e-3)
    assert list(curves["loss"])[::9] == [2.3, 0.4]


def test_of_many_cells_the_first_are_drawn_and_all_are_in_the_data(tmp_path):
    cells = [
        plan_cell("ddp", image_size=size, suffix=f".image_size={size}")
        for size in range(1, 31)
    ]
    panels = panels_of(tmp_path, *cells)
    assert len(panels) == 30
    left = cut(panels, panels_at_most=24, cells=20)
    assert [panel.title for panel in left] == [panel.title for panel in panels[:20]]
    assert len(cut(panels, panels_at_most=7, cells=100)) == 7
    drawing = drawings_of(read(Layout(tmp_path)))["throughput"]
    (legend,) = drawing.draw(6.4).legends
    assert re.match(r"the first \d of 30 cells", legend.get_title().get_text())


MINE = {"own_files": {"model": {"file": "net.py", "digest": "ab" * 32}}}
GLOO, BATCH = "ddp gloo", "batch 64 per device"


@pytest.mark.parametrize(
    ("cells", "panels"),
    [
        # Cells with one base share a panel.
        (
            [
                (strategy, {"model": model})
                for model in ("convnet", "lenet")
                for strategy in ("single", "ddp")
            ],
            {f"{model}, digits": ["single", GLOO] for model in ("convnet", "lenet")},
        ),
        # Names say what else differs.
        (
            [
                *(("zero", {"options": {"stage": n, "offload": 0}}) for n in (1, 2)),
                *(("ddp", {"launcher": name}) for name in ("spawn", "torchrun")),
                ("ddp", {"launcher": "manual", "init_method": "tcp"}),
            ],
            {
                "convnet, digits": [
                    *("zero stage=1", "zero stage=2"),
                    f"{GLOO} spawn, init_method=env",
                    f"{GLOO} torchrun, init_method=env",
                    f"{GLOO} manual, init_method=tcp",
                ]
            },
        ),
        # So do titles, in words: no value is a mapping of Python.
        (
            [
                ("ddp", {}),
                ("ddp", {"precision": "bf16", "env": {"A": "1"}}),
                ("ddp", {"image_size": 32, "compile": True}),
                ("ddp", {**MINE, "partition": "rome"}),
            ],
            {
                f"convnet, digits, image_size={size}, partition={partition}": names
                for size, partition, names in (
                    ("null", "null", [f"{GLOO} fp32", f"{GLOO} bf16, A=1"]),
                    ("32", "null", [f"{GLOO} fp32, compiled"]),
                    ("null", "rome", [f"{GLOO} fp32"]),
                )
            },
        ),
    ],
)
def test_panels_and_series_are_told_apart(tmp_path, cells, panels):
    planned = [
        plan_cell(strategy, suffix=f".{number}", **changes)
        for number, (strategy, changes) in enumerate(cells)
    ]
    found = panels_of(tmp_path, *planned)
    names = {panel.title: [one.name for one in panel.series] for panel in found}
    assert names == {f"{title}, {BATCH}": own for title, own in panels.items()}
    for panel in found:
        bases = {p.speedup_base.id for p in panel.points if p.speedup_base}
        assert len(bases) <= 1


@pytest.mark.parametrize(
    ("topologies", "lines"),
    [
        (["2x2", "1x1", "1x2"], [["1x1", "1x2", "2x2"]]),
        (["1x1", "1x2", "2x1", "2x2"], [["1x1", "1x2"], ["2x1", "2x2"]]),
        (["1x2"], [["1x2"]]),
    ],
)
def test_lines_join_one_trend_each(tmp_path, topologies, lines):
    cells = [plan_cell("ddp", topology) for topology in topologies]
    shared = plan_cell("ddp", "1x4", marks=["oversubscribed"])
    (panel,) = panels_of(tmp_path, *cells, shared)
    (series,) = panel.series
    found = [[point.cell.topology for point in line] for line in series.lines]
    # Rows that share cores are points, and in no line.
    assert found == lines
    assert len(series.points) == len(topologies) + 1


def test_scaling_shows_means_and_the_ideal_on_logarithmic_axes(tmp_path):
    ddp = [plan_cell("ddp", topology) for topology in ("1x1", "1x2", "2x2")]
    shared = plan_cell("ddp", "1x8", marks=["oversubscribed"])
    rates = [800, 790, 1500, 2800, 1400]
    cells = (plan_cell("single"), *ddp, shared)
    (axes,) = draw(tmp_path, "scaling", *cells, rates=rates).axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    means = [line for line in axes.get_lines() if line.get_markersize() == 5.5]
    heights = [float(line.get_ydata()[0]) for line in means]
    assert heights == pytest.approx([rate / 800 for rate in rates], rel=0.01)
    one, other = (float(line.get_xdata()[0]) for line in means[:2])
    assert one < 1 < other
    (ideal,) = lines_of(axes, linestyle="--")
    assert list(ideal.get_xdata()) == list(ideal.get_ydata()) == [1, 2, 4, 8]
    (trend,) = lines_of(axes, linestyle="-")
    assert len(trend.get_xdata()) == 3
    hollow = [m for m in means if to_rgb(m.get_markerfacecolor()) == (1, 1, 1)]
    assert len(hollow) == 1
    # Names stand at the ends of the series.
    assert [text.get_text() for text in axes.texts] == ["single", "ddp gloo"]


def test_throughput_per_device_has_launches_and_the_goal(tmp_path):
    cells = [plan_cell("single"), plan_cell("ddp", "1x1"), plan_cell("ddp", "1x2")]
    (axes,) = draw(tmp_path, "per_device", *cells, rates=[800, 790, 1500]).axes
    columns = [line for line in axes.get_lines() if len(line.get_xdata()) == 6]
    means = [line for line in axes.get_lines() if line.get_markersize() == 5.5]
    # Launches are drawn in the column of their mean.
    assert [set(line.get_xdata()) for line in columns] == [
        set(line.get_xdata()) for line in means
    ]
    base, goal = (
        float(line.get_ydata()[0])
        for style in ("--", ":")
        for line in axes.get_lines()
        if line.get_linestyle() == style
    )
    assert base == pytest.approx(803.884, rel=1e-5)
    assert goal == pytest.approx(0.7 * base)
    assert axes.get_ylim()[0] == 0
    # Two points are not joined.
    assert not [line for line in lines_of(axes) if to_rgb(line.get_color())[0] != 0.5]


def test_exposed_communication_is_a_share_of_the_step(tmp_path):
    """Of strategies that tell it, on several numbers of devices."""
    layout = write_cells(tmp_path, plan_cell("ddp"), plan_cell("ddp", "1x2"))
    (axes,) = drawings_of(read(layout))["communication"].draw(6.4).axes
    shown = [line for line in axes.get_lines() if line.get_markersize() == 5.5]
    assert [list(line.get_ydata()) for line in shown] == [[pytest.approx(12)]] * 2
    write_results(read(layout), plots=False)
    shares = pd.read_csv(layout.section("scaling"))["exposed_pct"]
    assert list(shares) == [12, 12]
    none = write_cells(tmp_path / "none", plan_cell("ddp", "1x2"))
    assert "communication" not in drawings_of(read(none))


def test_the_cost_joins_the_rows_that_no_other_beats(tmp_path):
    cells = [plan_cell("single"), plan_cell("ddp", "1x1"), plan_cell("ddp", "1x2")]
    (axes,) = draw(tmp_path, "cost", *cells, rates=[800, 400, 1500]).axes
    (best,) = lines_of(axes, linestyle=":")
    hours = [1e6 / rate / 3600 for rate in (1500, 800)]
    assert list(best.get_xdata()) == pytest.approx(hours, rel=0.01)
    prices = [2 * hours[0], hours[1]]
    assert list(best.get_ydata()) == pytest.approx(prices, rel=0.01)


def test_throughput_has_the_fastest_first_with_values(tmp_path):
    cells = [plan_cell(s, "1x1") for s in ("single", "ddp", "fsdp")]
    (axes,) = draw(tmp_path, "throughput", *cells, rates=[800, 900, 200]).axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["ddp gloo 1x1", "single 1x1", "fsdp 1x1"]
    texts = [text.get_text() for text in axes.texts]
    assert texts[0] == "904.4   x 1.125 [1.088, 1.164]"
    assert [text.xy[1] for text in axes.texts] == [0, 1, 2]
    assert axes.get_ylim() == (2.5, -0.5)
    # No room is left beyond the fastest.
    assert axes.get_xlim()[1] < 1.1 * 927


def test_rows_that_differ_late_in_long_names_have_different_names(tmp_path):
    options = [
        {"bucket_mb": size, "as_bucket_view": view}
        for size in (0.1, 25.0)
        for view in (False, True)
    ]
    cells = [plan_cell(options=own, suffix=f".{n}") for n, own in enumerate(options)]
    (axes,) = draw(tmp_path, "throughput", *cells).axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert "ddp gloo bucket_mb=0.1,\nas_bucket_view=false 1x1" in names
    assert len(set(names)) == 4


def memory_of(root, *peaks):
    """The plot of a row with launches of these peaks in MiB, if there is one."""
    planned, other = (plan_cell(name) for name in ("single", "ddp"))
    layout = write_plan(root, [planned, other])
    write_launches(layout, other)
    for number, peak in enumerate(peaks, start=1):
        with edited(write_launch(layout, planned, number) / "record.json") as record:
            record["ranks"][0]["memory"]["rss_peak_mib"] = peak
    drawing = drawings_of(read(layout)).get("memory")
    return drawing and drawing.draw(6.4).axes[0]


def test_memory_has_its_limit_and_an_outlier_is_counted(tmp_path):
    axes = memory_of(tmp_path / "far", *[700.0] * 5, 9000.0)
    mean = (5 * 700 + 9000) / 6 / 1024
    assert axes.get_xlim()[1] == pytest.approx(1.2 * mean)
    texts = [text.get_text() for text in axes.texts]
    assert "1 up to 8.789 \u25b6" in texts
    assert texts[0] == "2.03 of 23.4"
    near = memory_of(tmp_path / "near", *[15 * 1024.0] * 6)
    assert near.get_xlim()[1] >= 23.4
    # What fits easily tells nothing.
    assert memory_of(tmp_path / "small", *[350.0] * 6) is None


def test_phases_stack_to_the_step_of_the_table(tmp_path):
    phases = ["load", "forward", "optimize"]
    cells = plan_cell("ddp", "1x1"), plan_cell("ddp", "1x2", phases=phases)
    found = read(write_cells(tmp_path, *cells))
    figure = drawings_of(found)["phases"].draw(6.4)
    (axes,) = figure.axes
    # Steps of different size say so.
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["ddp gloo 1x1 (64)", "ddp gloo 1x2 (128)"]
    (panel,) = found.panels
    for place, point in enumerate(panel.points):
        bars = [one for one in axes.patches if round(one.get_y() + 0.5) == place]
        step = point.numbers["step_ms"].value
        assert sum(bar.get_width() for bar in bars) == pytest.approx(step)
    # The second rank is 1 % faster, so the slowest takes longer than their mean.
    assert axes.patches[-1].get_width() == pytest.approx(0.005 * step, rel=0.01)
    (legend,) = figure.legends
    assert "slowest rank's extra" in [text.get_text() for text in legend.get_texts()]


def test_a_phase_has_one_color_in_all_panels(tmp_path):
    cells = [
        plan_cell("single", model="convnet"),
        plan_cell("single", model="lenet", phases=["forward", "update"]),
    ]
    first, second = draw(tmp_path, "phases", *cells).axes
    forward = first.patches[2].get_facecolor()
    assert forward in {bar.get_facecolor() for bar in second.patches if bar.get_width()}


def test_a_strategy_has_one_color_and_one_marker_on_all_plots(tmp_path):
    cells = [
        plan_cell(strategy, topology, model=model)
        for model, strategy in [
            ("convnet", "single"),
            ("lenet", "ddp"),
            ("convnet", "ddp"),
        ]
        for topology in ("1x1", "1x2")
    ]
    drawings = drawings_of(read(write_cells(tmp_path, *cells)))
    found = set()
    for name in ("throughput", "per_device", "scaling", "cost"):
        figure = drawings[name].draw(6.4)
        assert figure.get_suptitle() == drawings[name].question
        first, second = figure.axes
        # The second panel has ddp alone.
        (ddp,) = set(markers_of(second))
        (single,) = set(markers_of(first)) - {ddp}
        found.add((ddp, single))
    ((ddp, single),) = found
    assert ddp[0] != single[0]
    assert ddp[1] != single[1]


def test_series_of_a_strategy_differ_in_paleness(tmp_path):
    cells = [
        plan_cell("zero", options={"stage": stage}, suffix=f".{stage}")
        for stage in (1, 2, 3)
    ]
    panels = panels_of(tmp_path, *cells)
    styles = list(choose_styles(panels, panels).values())
    assert len({style.marker for style in styles}) == 1
    sums = [sum(style.color) for style in styles]
    assert sums == sorted(sums)
    assert len({*sums}) == 3
