"""The plots exist for every outcome, show all cells, and are reproducible."""

from __future__ import annotations

import shutil

import matplotlib
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from matplotlib.lines import Line2D

from rankbench.record import PLOTS, Layout
from rankbench.results.elements import panels as panel_plots
from rankbench.results.numbers.result_set import read
from rankbench.results.numbers.series import cut, make_panels
from rankbench.results.numbers.summary import summarise
from rankbench.results.read.rows import load
from rankbench.results.render.files import write_results
from rankbench.results.sections import memory, phases, scaling, steps, throughput
from unit.synthetic import (
    edited,
    make_cell,
    plan_cell,
    plan_one,
    write_cells,
    write_example,
    write_launch,
    write_launches,
    write_plan,
)

pytestmark = pytest.mark.unit

FILES = [(name, suffix) for name in PLOTS for suffix in ("svg", "png", "csv")]
STARTS = {"png": b"\x89PNG", "svg": b"<?xml", "csv": b"panel,series,cell"}


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


def make_layout(root, kind):
    cells = [plan_cell(make_cell("single")), plan_cell(make_cell("ddp", "1x2"))]
    layout = write_plan(root, cells)
    for planned in cells:
        if kind == "all":
            write_launches(layout, planned)
        else:
            write_launch(
                layout, planned, status="crashed", reason="it $broke$", wanted=1
            )
    return layout


def panels_of(root, *cells):
    return make_panels(summarise(load(write_cells(root, *cells))))


def draw(section, layout):
    """The only plot of a section."""
    (drawing,) = section.SECTION.make(read(layout)).drawings
    return drawing.draw(8)


def lines_of(axes, **style):
    """Lines of a given style with more than one place on the x axis."""
    return [
        line
        for line in axes.get_lines()
        if len(set(line.get_xdata())) > 1
        and all(getattr(line, f"get_{name}")() == want for name, want in style.items())
    ]


@pytest.mark.parametrize("kind", ["all", "partly", "none"])
def test_plots_exist_for_every_outcome(tmp_path, example, kind):
    layout = example if kind == "partly" else make_layout(tmp_path, kind)
    if kind != "partly":
        build(layout)
    for name, suffix in FILES:
        data = layout.plot(name, suffix).read_bytes()
        assert data.startswith(STARTS[suffix])
    same = layout.plot("scaling", "svg").read_bytes() == (
        layout.plot("phases", "svg").read_bytes()
    )
    assert same == (kind == "none")


def test_plot_of_nothing_says_so(tmp_path):
    figure = draw(scaling, make_layout(tmp_path, "none"))
    texts = [text.get_text() for text in figure.texts]
    assert "No cell of quickstart is ok" in texts[0]
    assert texts[1] == "2 crashed"


def test_same_plan_and_records_give_the_same_bytes(tmp_path, example):
    second = Layout(tmp_path / "second")
    second.root.mkdir()
    shutil.copy(example.plan, second.plan)
    shutil.copytree(example.records, second.records)
    with matplotlib.rc_context({"savefig.facecolor": "red", "font.size": 30}):
        build(second)
    names = ("table", "answer", "diagnostics", "losses", "loading")
    documents = {f"{name}.{s}" for name in names for s in ("csv", "md", "tex")}
    made = {p.relative_to(second.root).as_posix(): p for p in files_of(second.root)}
    assert made.keys() == documents | {"answer.json", "table.html", "plan.json"} | {
        f"plots/{name}.{suffix}" for name, suffix in FILES
    }
    for name, path in made.items():
        assert path.read_bytes() == (example.root / name).read_bytes(), name
        assert str(tmp_path).encode() not in path.read_bytes()


def files_of(root):
    """Files that are made from plan and records."""
    return [*root.glob("*.*"), *root.glob("plots/*")]


def test_the_data_of_a_plot_is_what_it_shows(example):
    frames = {name: pd.read_csv(example.plot(name, "csv")) for name in PLOTS}
    of_cell = {
        name: frame[frame["cell"] == "ddp.gloo.1x2.convnet.digits"]
        for name, frame in frames.items()
    }
    scaling = of_cell["scaling"]
    assert len(scaling) == 1 + 6
    (shown,) = scaling[scaling["launch"].isna()].to_dict("records")
    median = scaling["throughput"].iloc[1:].median()
    assert shown["throughput"] == pytest.approx(median, rel=1e-3)
    assert shown["throughput_lo"] < shown["throughput"] < shown["throughput_hi"]
    assert shown["ideal"] == pytest.approx(2 * 800, rel=0.02)
    assert of_cell["phases"]["ms"].sum() == pytest.approx(1e3 * 128 / 1500, rel=0.02)
    assert list(of_cell["curves"]["loss"])[::9] == [2.3, 0.4]


def test_data_is_written_without_drawing(tmp_path, example):
    layout = write_example(tmp_path / "data")
    write_results(read(layout), draw=False)
    there = {path.name for path in (layout.root / "plots").iterdir()}
    assert there == {f"{name}.csv" for name in PLOTS}
    for name in PLOTS:
        path = layout.plot(name, "csv")
        assert path.read_bytes() == example.plot(name, "csv").read_bytes()


def test_of_many_cells_the_first_are_drawn_and_all_are_in_the_data(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(panel_plots, "MOST_PANELS", 2)
    cells = [
        plan_cell(make_cell("ddp", batch_size=size), suffix=f".batch_size={size}")
        for size in range(1, 31)
    ]
    panels = panels_of(tmp_path, *cells)
    assert len(panels) == 30
    left = cut(panels, panels_at_most=24, cells=20)
    assert [panel.title for panel in left] == [panel.title for panel in panels[:20]]
    assert len(cut(panels, panels_at_most=7, cells=100)) == 7
    (drawing,) = scaling.SECTION.make(read(Layout(tmp_path))).drawings
    said = [text.get_text() for text in drawing.draw(8).texts]
    assert any("the first 2 of 30 cells; scaling.csv has all" in one for one in said)
    assert drawing.frame()["cell"].nunique() == 30


def test_cells_with_one_base_share_a_panel(tmp_path):
    cells = [
        plan_cell(make_cell(strategy, "1x1", model=model))
        for model in ("convnet", "lenet")
        for strategy in ("single", "ddp")
    ]
    panels = panels_of(tmp_path, *cells)
    titles = [panel.title for panel in panels]
    assert titles == [
        "convnet, digits, batch 64 (weak scaling)",
        "lenet, digits, batch 64 (weak scaling)",
    ]
    names = [[series.name for series in panel.series] for panel in panels]
    assert names == [["single", "ddp gloo"]] * 2
    bases = [[base.id for base in panel.bases] for panel in panels]
    assert bases == [[cells[0]["id"]], [cells[2]["id"]]]


def test_names_tell_apart_what_else_differs(tmp_path):
    cells = [
        plan_cell(make_cell("zero", options={"stage": 1, "offload": 0}), suffix=".a"),
        plan_cell(make_cell("zero", options={"stage": 2, "offload": 0}), suffix=".b"),
        plan_cell(make_cell("ddp", launcher="spawn"), suffix=".c"),
        plan_cell(make_cell("ddp", launcher="torchrun"), suffix=".d"),
        plan_cell(make_cell("ddp", launcher="manual", init_method="tcp"), suffix=".e"),
    ]
    (panel,) = panels_of(tmp_path, *cells)
    assert [series.name for series in panel.series] == [
        "zero stage=1",
        "zero stage=2",
        "ddp gloo spawn init_method=env",
        "ddp gloo torchrun init_method=env",
        "ddp gloo manual init_method=tcp",
    ]


def test_titles_tell_panels_apart(tmp_path):
    cells = [
        plan_cell(make_cell("ddp", precision="fp32"), suffix=".a"),
        plan_cell(make_cell("ddp", precision="bf16"), suffix=".b"),
    ]
    titles = [panel.title for panel in panels_of(tmp_path, *cells)]
    assert [title.split(", ")[-1] for title in titles] == [
        "precision fp32",
        "precision bf16",
    ]


@pytest.mark.parametrize(
    ("topologies", "lines"),
    [
        (["2x2", "1x1", "1x2"], [["1x1", "1x2", "2x2"]]),
        (["1x1", "1x2", "2x1", "2x2"], [["1x1", "1x2"], ["2x1", "2x2"]]),
        (["1x2"], [["1x2"]]),
    ],
)
def test_lines_join_one_trend_each(tmp_path, topologies, lines):
    cells = [plan_cell(make_cell("ddp", topology)) for topology in topologies]
    (panel,) = panels_of(tmp_path, *cells)
    (series,) = panel.series
    found = [[point.row.cell.topology for point in line] for line in series.lines]
    assert found == lines


def test_shared_cores_are_in_no_line(tmp_path):
    cells = [plan_cell(make_cell("ddp", topology)) for topology in ("1x1", "1x2")]
    shared = plan_cell(make_cell("ddp", "1x4"), marks=["oversubscribed"])
    (panel,) = panels_of(tmp_path, *cells, shared)
    (series,) = panel.series
    assert [len(line) for line in series.lines] == [2]
    assert len(series.points) == 3


def test_scaling_shows_launches_means_and_the_ideal(tmp_path):
    cells = [
        plan_cell(make_cell("single")),
        plan_cell(make_cell("ddp", "1x1")),
        plan_cell(make_cell("ddp", "1x2")),
        plan_cell(make_cell("ddp", "2x2")),
        plan_cell(make_cell("ddp", "1x8"), marks=["oversubscribed"]),
    ]
    rates = [800, 790, 1500, 2800, 1400]
    (axes,) = draw(scaling, write_cells(tmp_path, *cells, rates=rates)).axes
    columns = [line for line in axes.get_lines() if len(line.get_xdata()) == 6]
    means = [line for line in axes.get_lines() if len(line.get_xdata()) == 1]
    assert len(columns) == len(means) == 5
    # Launches are drawn in the column of their mean, series beside each other.
    assert [set(line.get_xdata()) for line in columns] == [
        set(line.get_xdata()) for line in means
    ]
    single, ddp = (float(line.get_xdata()[0]) for line in means[:2])
    assert single < 1 < ddp
    (ideal,) = lines_of(axes, linestyle="--")
    assert list(ideal.get_xdata()) == [1, 2, 4, 8]
    assert list(ideal.get_ydata()) == pytest.approx(
        [803.884 * n for n in (1, 2, 4, 8)], rel=1e-5
    )
    assert ideal.get_label() == "ideal: devices x 803.9 samples/s of single none 1x1"
    (trend,) = lines_of(axes, linestyle="-")
    assert len(trend.get_xdata()) == 3
    hollow = [m for m in means if to_rgb(m.get_markerfacecolor()) == (1, 1, 1)]
    assert len(hollow) == 1
    assert axes.get_ylim()[0] == 0


def test_two_points_are_not_joined(tmp_path):
    cells = [plan_cell(make_cell("ddp", topology)) for topology in ("1x1", "1x2")]
    (axes,) = draw(scaling, write_cells(tmp_path, *cells)).axes
    assert lines_of(axes, linestyle="-") == []


def test_throughput_has_the_fastest_first_with_labels(tmp_path):
    cells = [plan_cell(make_cell(s, "1x1")) for s in ("single", "ddp", "fsdp")]
    layout = write_cells(tmp_path, *cells, rates=[800, 900, 200])
    (axes,) = draw(throughput, layout).axes
    texts = [text.get_text() for text in axes.texts]
    assert [text.partition("  ")[0] for text in texts] == [
        "ddp gloo 1x1",
        "single 1x1",
        "fsdp 1x1",
    ]
    assert texts[0].endswith("904 [887, 922]")
    places = [text.xy[1] for text in axes.texts]
    assert places == [0, 1, 2]
    assert axes.get_ylim() == (2.5, -0.5)
    (drawing,) = throughput.SECTION.make(read(layout)).drawings
    assert drawing.frame()["series"].tolist() == ["ddp gloo", "single", "fsdp"]


def test_an_outlier_does_not_set_the_axis_and_is_counted(tmp_path):
    layout, planned = plan_one(tmp_path, "single")
    write_launches(layout, planned, count=5)
    path = write_launch(layout, planned, 6) / "record.json"
    with edited(path) as record:
        record["ranks"][0]["memory"]["rss_peak_mib"] = 9000.0
    (axes,) = draw(memory, layout).axes
    assert axes.get_xlim()[1] == pytest.approx(1.5 * 350, rel=0.02)
    assert [text.get_text() for text in axes.texts] == ["1 up to 9000 \u25b6"]
    # Without an outlier there is no note.
    (axes,) = draw(steps, layout).axes
    assert [text.get_text() for text in axes.texts] == []


def test_many_devices_are_logarithmic(tmp_path):
    cells = [plan_cell(make_cell("ddp", topology)) for topology in ("1x1", "4x4")]
    (axes,) = draw(scaling, write_cells(tmp_path, *cells)).axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")


def test_phases_stack_to_the_mean_step(tmp_path):
    planned = plan_cell(make_cell("single"), phases=["load", "forward", "optimize"])
    layout = write_cells(tmp_path, planned)
    (panel,) = read(layout).panels
    figure = draw(phases, layout)
    (axes,) = figure.axes
    widths = [bar.get_width() for bar in axes.patches]
    (point,) = panel.points
    steps = [sum(launch.phase_ms.values()) for launch in point.measures]
    assert sum(widths) == pytest.approx(sum(steps) / len(steps))
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["load", "forward", "optimize"]


def test_a_phase_has_one_color_in_all_panels(tmp_path):
    cells = [
        plan_cell(make_cell("single", model="convnet")),
        plan_cell(make_cell("single", model="lenet"), phases=["forward", "update"]),
    ]
    first, second = draw(phases, write_cells(tmp_path, *cells)).axes
    forward = first.patches[2].get_facecolor()
    assert forward in {bar.get_facecolor() for bar in second.patches if bar.get_width()}


def test_a_series_has_one_color_in_all_panels(tmp_path):
    cells = [
        plan_cell(make_cell(strategy, topology, model=model))
        for model, strategy in [
            ("convnet", "single"),
            ("lenet", "ddp"),
            ("convnet", "ddp"),
        ]
        for topology in ("1x1", "1x2")
    ]
    first, second = draw(scaling, write_cells(tmp_path, *cells)).axes
    assert isinstance(first.get_lines()[1], Line2D)
    assert first.get_lines()[1].get_color() == second.get_lines()[0].get_color()
