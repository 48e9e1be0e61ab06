"""Profiles: operators, traces, pictures, and what is removed with them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from matplotlib.colors import to_hex

from rankbench.record import Layout
from rankbench.results.elements.plotting import color_phases
from rankbench.results.numbers.result_set import read
from rankbench.results.render.files import write_results
from rankbench.results.sections.profiles import (
    MOST_RANKS,
    draw_timeline,
    load_profiles,
    split_lanes,
)
from unit.synthetic import (
    make_cell,
    plan_cell,
    plan_one,
    read_rows,
    write_launch,
    write_plan,
    write_profile,
    write_tables,
)

pytestmark = pytest.mark.unit

CELL = "ddp.gloo.1x2.convnet.digits"
PLOT = f"profile-{CELL}"


def write(root: Path, **profile: Any) -> Layout:
    """One cell with a profile."""
    layout, planned = plan_one(root, "ddp", "1x2")
    write_launch(layout, planned, wanted=1)
    write_profile(layout, planned, **{"ranks": 2, **profile})
    return layout


def find(layout: Layout):
    return load_profiles(layout, read(layout).rows)


def test_operators_of_each_rank_by_step(tmp_path):
    layout = write(tmp_path)
    write_tables(layout)
    first, second, *_ = rows = read_rows(layout, "profiles")
    assert [row["rank"] for row in rows] == ["0", "0", "1", "1"]
    assert list(first.values()) == [CELL, "0", "aten::mm", "4", "15", "0", "0.5"]
    assert (second["calls"], second["cpu_ms"], second["share"]) == ("0.5", "3", "0.1")


def test_with_a_gpu_the_share_is_by_its_time(tmp_path):
    layout = write(tmp_path, device_ms=48.0)
    write_tables(layout)
    rows = read_rows(layout, "profiles")
    assert [row["share"] for row in rows if row["rank"] == "0"] == ["0.8", "0"]


def test_pages_lead_to_traces_and_show_the_picture(tmp_path):
    layout = write(tmp_path)
    write_results(read(layout), plots=False)
    trace = f"records/{CELL}/1/profile/1/trace1.json.gz"
    page = layout.report.read_text()
    assert f'<a href="{trace}">trace1.json.gz</a>' in page
    assert f'<img src="plots/{PLOT}.svg"' in page
    _, of_last_rank = page.split(f"<h3>{CELL}, rank 1</h3>")
    shares = re.findall(
        r"<td>(aten::\w+)</td>\n.*?>(\d+)</td></tr>", of_last_rank, re.S
    )
    assert shares == [("aten::mm", "50"), ("aten::add", "10")]
    assert "GPU ms/step" not in page


def test_addresses_are_quoted(tmp_path):
    planned = plan_cell(make_cell("ddp", "1x2"), suffix=".a b#c?(d)")
    layout = write_plan(tmp_path, [planned])
    write_launch(layout, planned, wanted=1)
    write_profile(layout, planned)
    write_tables(layout)
    quoted = f"records/{CELL}.a%20b%23c%3F%28d%29/1/profile/1/trace0.json.gz"
    assert f'href="{quoted}"' in layout.report.read_text()


def test_the_first_profile_that_succeeded_counts(tmp_path):
    layout = write(tmp_path, number=2)
    planned = plan_cell(make_cell("ddp", "1x2"))
    write_profile(layout, planned, number=1, status="oom", profile=None)
    (profile,) = find(layout)
    assert profile.folder == f"records/{CELL}/1/profile/2"


def test_rows_that_are_not_ok_have_none(tmp_path):
    layout, planned = plan_one(tmp_path, "ddp", "1x2")
    write_launch(layout, planned, wanted=2)
    write_launch(layout, planned, 2, wanted=2, status="crashed", reason="no")
    write_profile(layout, planned)
    assert not find(layout)


def test_a_rank_has_phases_and_collectives_beneath(tmp_path):
    (profile,) = find(write(tmp_path))
    (axes,) = draw_timeline(profile, width=8).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "rank 0",
        "rank 1",
    ]
    # For each rank there are its phases, and two lanes because its collectives overlap.
    phases, *lanes = axes.collections[:3]
    bounds = [path.get_extents() for path in phases.get_paths()]
    assert [(b.x0, b.x1) for b in bounds] == [(0, 10), (10, 30), (30, 40), (40, 60)]
    colors = color_phases(["forward", "backward"])
    assert [to_hex(color) for color in phases.get_facecolors()] == [
        to_hex(colors[name]) for name in ("forward", "backward") * 2
    ]
    starts = [[p.get_extents().x0 for p in lane.get_paths()] for lane in lanes]
    assert starts == [[12, 42], [15, 45]]
    below = max(path.get_extents().y1 for path in phases.get_paths())
    assert all(p.get_extents().y0 >= below for lane in lanes for p in lane.get_paths())


def test_of_many_ranks_the_first_are_shown(tmp_path):
    (profile,) = find(write(tmp_path, ranks=MOST_RANKS + 3))
    (axes,) = draw_timeline(profile, width=8).axes
    assert len(axes.get_yticks()) == MOST_RANKS
    assert axes.get_title(loc="left") == f"{CELL} (the first 8 of 11 ranks)"


def test_lanes_hold_no_overlap():
    def span(start, ms):
        return {"start_ms": start, "ms": ms}

    a, b, c, d = span(0, 5), span(1, 2), span(3, 4), span(5, 1)
    assert split_lanes([d, c, b, a]) == [[a, d], [b, c]]


def test_files_go_with_the_profile(tmp_path):
    layout = write(tmp_path)
    write_results(read(layout))
    made = [layout.section("profiles")]
    made += [layout.plot(PLOT, suffix) for suffix in ("svg", "png")]
    assert all(path.exists() for path in made)
    shutil.rmtree(layout.attempt(CELL, 1) / "profile")
    write_results(read(layout), plots=False)
    assert not any(path.exists() for path in made)
    assert layout.plot("throughput", "svg").exists()
    assert "Profiles" not in layout.report.read_text()
