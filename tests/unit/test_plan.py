"""The plan on disk, and finding cells in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from factories import make_site, read_pairs, read_plan_of
from rankbench.launch.job.measure import run_job
from rankbench.matrix.selection import find_cell, select_cells
from rankbench.plan import Plan, read_plan
from rankbench.record import Layout

pytestmark = pytest.mark.unit

TEXT = """
name: x
strategy: [single, ddp, {ddp: {bucket_mb: 1}}]
backend: [gloo, mpi]
topology: [1x1, 1x3]
oversubscribe: [false, true]
"""
DDP = "ddp.gloo.1x1.convnet.digits"


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return read_plan_of(tmp_path, TEXT)


def test_round_trip(plan, tmp_path):
    path = tmp_path / "plan.json"
    path.write_bytes(plan.to_json())
    again = read_plan(path)
    assert again == plan
    assert again.to_json() == plan.to_json()
    assert list(again.cells) == list(plan.cells)
    assert again.name == "x"
    # Jobs compare the time of the plan, so an unchanged plan must not be rewritten.
    assert read_plan_of(tmp_path, TEXT).to_json() == plan.to_json()


def test_plan_holds_what_jobs_need(plan):
    value = json.loads(plan.to_json())
    needed = {"name", "launches", "time_limit", "sha256", "backend_logs"}
    assert value["experiment"].keys() >= needed
    assert value["site"] == make_site()
    assert value["code"] == {"rank": "c0de"}
    for cell in value["cells"]:
        assert cell["hash"] == plan.cells[cell["id"]].cell.hash()


@pytest.mark.parametrize(("row", "complaint"), read_pairs("refused_jobs.txt"))
def test_keys_about_jobs_that_do_not_fit_are_refused(tmp_path, row, complaint):
    place, keys = row.split(": ", 1)
    site = make_site(scheduler="slurm" if place == "slurm" else "none")
    with pytest.raises(ValueError, match=rf"experiment.yaml:[\d :]+.*{complaint}"):
        read_plan_of(tmp_path, f"{TEXT}\n{keys}\n", site)


def test_feasible_cells(plan):
    assert len(plan.feasible) == 3 * 3
    assert {c.cell.backend for c in plan.feasible} == {"none", "gloo"}
    marked = [c for c in plan.cells.values() if c.marks]
    assert {c.cell.topology for c in marked} == {"1x3"}


@pytest.mark.parametrize(
    "changes",
    [
        {"cells": None},
        {"cells": [{"id": "a"}]},
        {"site": ...},
        pytest.param({"field": "cell"}, id="cell of another version"),
        pytest.param({"field": "shape"}, id="shape of another version"),
    ],
)
def test_damaged_plan_is_named(plan, tmp_path, changes):
    path = tmp_path / "plan.json"
    value = json.loads(plan.to_json())
    for version in (0, 1, None):
        path.write_text(json.dumps({**value, "schema": version}))
        with pytest.raises(ValueError, match=rf"^{path} has plan schema {version}, t"):
            read_plan(path)
    if "field" in changes:
        value["cells"][0][changes["field"]]["more"] = 1
    else:
        value |= changes
        value = {k: v for k, v in value.items() if v is not ...}
    path.write_text(json.dumps(value))
    with pytest.raises(ValueError, match=rf"^{path} is damaged"):
        read_plan(path)
    # So does the job that measures its cells.
    with pytest.raises(ValueError, match=rf"^{path} is damaged"):
        run_job(Layout(tmp_path), DDP, project=tmp_path, say=lambda *_: None)


def test_find(plan):
    assert find_cell(plan, DDP).id == find_cell(plan, "ddp.gloo.1x1").id == DDP
    near = f"no cell 'ddp.gloo.1x1.convnet.digit' .*did you mean '{DDP}'"
    with pytest.raises(ValueError, match=near):
        find_cell(plan, "ddp.gloo.1x1.convnet.digit")


@pytest.mark.parametrize(
    ("keys", "short", "said"),
    [
        ("", "ddp", "16 cells are called so"),
        ("\nlearning_rate: [0.5, 1]", "ddp.gloo.1x3", "8 cells are called so"),
    ],
)
def test_an_ambiguous_cell_is_refused(tmp_path, keys, short, said):
    with pytest.raises(ValueError, match=f"no cell '{short}' .* {said}"):
        find_cell(read_plan_of(tmp_path, TEXT + keys), short)


def test_select(plan):
    every = list(plan.cells.values())
    assert select_cells(plan, None) == every
    assert select_cells(plan, "") == every
    chosen = select_cells(plan, "strategy=ddp bucket_mb=1 backend=gloo topology=1x1")
    assert [c.cell.oversubscribe for c in chosen] == [False, True]
