"""The preview of a run."""

from __future__ import annotations

import pytest

from factories import make_site, read_plan_of
from rankbench.plan import Plan
from rankbench.project import preview as preview_module
from rankbench.project.preview import LISTED, Preview

pytestmark = pytest.mark.unit

TEXT = """
name: x
strategy: [single, ddp]
backend: [gloo, mpi]
topology: [1x1, 1x2]
"""
SINGLE = "single.none.1x2.convnet.digits"
ONE, TWO = "ddp.gloo.1x1.convnet.digits", "ddp.gloo.1x2.convnet.digits"


def lines_of(
    plan: Plan,
    pending: dict[str, int],
    seconds: dict[str, float] | None = None,
    time_limit: float = 360,
) -> list[str]:
    chosen = list(plan.cells.values())
    return Preview(chosen, pending, seconds or {}, time_limit).lines()


def test_counts_and_device_hours(tmp_path):
    plan = read_plan_of(tmp_path, TEXT)
    lines = lines_of(plan, {SINGLE: 5, TWO: 10})
    assert lines[:2] == [
        "6 cells: 2 to measure, 2 measured, 2 that cannot run here",
        "15 launches, 25 processes: the first will tell how long it takes (time_limit: "
        "360 s each)",
    ]
    preview = Preview(list(plan.cells.values()), {SINGLE: 5, TWO: 10}, {}, 360)
    # Each launch takes two devices for 0.1 h.
    assert preview.facts()["device_hours_at_most"] == 3
    assert f"  {SINGLE}  5 launches of 1 rank" in lines
    assert f"  {TWO}  10 launches of 2 ranks" in lines
    assert not [line for line in lines if "by the records" in line]


def test_infeasible_cells_have_their_reason(tmp_path):
    plan = read_plan_of(tmp_path, TEXT)
    lines = lines_of(plan, {ONE: 6})
    start = lines.index("cannot run here:")
    assert [line.split("  ")[1] for line in lines[start + 1 :]] == [
        "ddp.mpi.1x1.convnet.digits",
        "ddp.mpi.1x2.convnet.digits",
    ]
    assert all("has no MPI" in line for line in lines[start + 1 :])


def test_earlier_launches_give_an_estimate(tmp_path):
    plan = read_plan_of(tmp_path, TEXT)
    # 12 launches of 30 s, half of them on 2 devices.
    said = (
        "12 launches, 18 processes: about 6 min, 0.15 device-hours, by earlier launches"
    )
    pending = {ONE: 6, TWO: 6}
    assert lines_of(plan, pending, {ONE: 30.0, TWO: 30.0})[1] == said
    line = lines_of(plan, pending, {TWO: 30.0})[1]
    assert line == f"{said} (never launched: 1, taken as the mean)"


def test_nothing_to_do(tmp_path):
    plan = read_plan_of(tmp_path, "name: x\nstrategy: single")
    assert lines_of(plan, {}) == [
        "1 cell: 0 to measure, 1 measured, 0 that cannot run here"
    ]


def test_marks_are_shown(tmp_path):
    text = "name: x\nstrategy: ddp\ntopology: 1x3\noversubscribe: true"
    plan = read_plan_of(tmp_path, text)
    (cell_id,) = plan.cells
    expected = f"  {cell_id}  6 launches of 3 ranks  [oversubscribed]"
    assert expected in lines_of(plan, {cell_id: 6})


def test_long_lists_are_summed_up(tmp_path, monkeypatch):
    monkeypatch.setattr(preview_module, "LISTED", 3)
    text = "name: x\nstrategy: ddp\nbackend: [gloo, mpi]\nseed: [0, 1, 2, 3, 4]"
    plan = read_plan_of(tmp_path, text)
    lines = lines_of(plan, {cell.id: 6 for cell in plan.feasible})
    listed = lines[lines.index("to measure:") + 1 : lines.index("cannot run here:")]
    assert len(listed) == 4
    assert listed[-1] == "  ... and 2 more"
    (grouped,) = lines[lines.index("cannot run here:") + 1 :]
    assert grouped.startswith("  5 cells  this torch")


def test_thousands_of_cells_fit_on_a_screen(tmp_path):
    seeds = ", ".join(str(seed) for seed in range(1000))
    text = f"name: x\nstrategy: ddp\ntopology: [1x1, 1x9]\nseed: [{seeds}]"
    plan = read_plan_of(tmp_path, text, make_site(cores=1))
    lines = lines_of(plan, {cell.id: 6 for cell in plan.feasible})
    assert (
        lines[0] == "2000 cells: 1000 to measure, 0 measured, 1000 that cannot run here"
    )
    assert len(lines) < LISTED + 10


def test_launches_that_are_not_measured_are_counted_apart(tmp_path):
    plan = read_plan_of(tmp_path, "name: p\nstrategy: [single, ddp]\ntopology: 1x2\n")
    cells = plan.feasible
    pending = {cell.id: 3 for cell in cells}
    beside = {cells[0].id: 0, cells[1].id: 1}
    lines = Preview(cells, pending, {}, 60, beside).lines()
    assert lines[1].startswith("6 launches and 1 for gates or profiles, 11 processes")


def test_images_come_first(tmp_path):
    plan = read_plan_of(tmp_path, TEXT)
    chosen = list(plan.cells.values())
    reason = "changed: gloo.def"
    preview = Preview(chosen, {}, {}, 360, images={"gloo-cpu": reason})
    lines = preview.lines()
    assert lines[1:3] == ["images to make:", "  gloo-cpu  changed: gloo.def"]


def test_jobs_and_the_longest_of_them(tmp_path):
    plan = read_plan_of(tmp_path, TEXT)
    chosen = list(plan.cells.values())
    jobs = {ONE: {"nodes": 1, "minutes": 5}, TWO: {"nodes": 2, "minutes": 12}}
    lines = Preview(chosen, {ONE: 6, TWO: 6}, {}, 360, jobs=jobs).lines()
    assert lines[2] == f"2 jobs; the longest may take 12 minutes on 2 hosts: {TWO}"
