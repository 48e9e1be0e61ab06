"""A damaged record makes the row of its own cell stale, and changes no other row."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from factories import make_record, read_plan_of
from rankbench.launch.job.claim import make_request
from rankbench.launch.job.measure import run_job
from rankbench.project.status import find_rerun
from rankbench.record import Layout, read_json, write_if_changed, write_json
from rankbench.results.numbers.result_set import Summary, read
from unit.attacks import DAMAGES, put
from unit.synthetic import (
    edited,
    plan_cell,
    read_report,
    read_rows,
    write_launch,
    write_launches,
    write_plan,
    write_profile,
)

pytestmark = pytest.mark.unit

CELL = "ddp.gloo.1x2.convnet.digits"
RECORD, TIMES = "record.json", "steps.npz"
OF_FOLDER = ["record", "directory", "turn"]


def shown(summaries: list[Summary]) -> dict[str, tuple[Any, ...]]:
    """What a table says of each row, but for the one whose file is damaged."""
    return {
        one.id: (
            *(one.status, one.reason, one.ok, one.attempt),
            *(one.marks, one.numbers, one.disturbed),
            one.launches.drop(columns=OF_FOLDER).to_csv(index=False),
            [base.id for base in one.bases],
        )
        for one in summaries
        if one.id != CELL
    }


def write_few(root: Path) -> Layout:
    """A workload of four cells, and a cell that has failed."""
    names = [("single", "1x1"), ("ddp", "1x1"), ("ddp", "1x2"), ("ddp", "2x2")]
    cells = [plan_cell(*name) for name in names]
    failed = plan_cell("fsdp", "1x2")
    layout = write_plan(root, [*cells, failed], launches=3)
    for planned, rate in zip(cells, (800, 790, 1500, 2700), strict=True):
        write_launches(layout, planned, rate=rate, count=3, wanted=3)
    write_launch(layout, failed, wanted=3, status="crashed", reason="no")
    return layout


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    return write_few(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """The other rows of the example, if a launch of the cell has failed."""
    layout = write_few(tmp_path_factory.mktemp("failed"))
    with edited(layout.launch(CELL, 1, 3) / RECORD) as record:
        record |= {"status": "crashed", "reason": "rank 1 ended by SIGSEGV"}
    return shown(read(layout).rows)


@pytest.fixture
def launch(example: Layout) -> Iterator[Path]:
    """A launch, which is as before afterwards."""
    place = example.launch(CELL, 1, 3)
    kept = {name: (place / name).read_bytes() for name in (RECORD, TIMES)}
    yield place
    shutil.rmtree(place)
    place.mkdir()
    for name, data in kept.items():
        (place / name).write_bytes(data)


@pytest.mark.parametrize(
    ("file", "name"), [(file, name) for file in DAMAGES for name in DAMAGES[file]]
)
def test_one_damaged_file_is_named_in_its_row_alone(
    example, rest, launch, file, name, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    DAMAGES[file][name](launch)
    found = read(example)
    (row,) = (one for one in found.rows if one.id == CELL)
    assert (row.status, row.records, row.numbers) == ("stale", [], {})
    # A record may claim what its steps do not have.
    place = launch.relative_to(example.root)
    assert row.reason.startswith((f"{place}/{RECORD} ", f"{place}/{TIMES} "))
    assert row.reason.endswith("restore this file, or measure the cell again")
    assert row.reason.isprintable()
    assert len(row.reason) < 400
    assert shown(found.rows) == rest
    with pytest.raises(ValueError, match=f"^{example.root}/records/{CELL}/1/3/"):
        read(example, strict=True)
    assert not (tmp_path / "executed").exists()


def test_a_record_of_another_definition_is_stale(example, rest, launch):
    put(RECORD, "cell_hash", "0" * 16)(launch)
    found = read(example).rows
    (row,) = (one for one in found if one.id == CELL)
    assert (row.status, "definition changed" in row.reason) == ("stale", True)
    assert shown(found) == rest


@pytest.fixture
def two(tmp_path: Path) -> tuple[Layout, list[str]]:
    """Results of two cells with profiles, and the ids of both."""
    planned = [plan_cell("ddp", topology) for topology in ("1x1", "1x2")]
    layout = write_plan(tmp_path, planned, launches=1)
    for one in planned:
        write_launch(layout, one, wanted=1)
        write_profile(layout, one)
    return layout, [one["id"] for one in planned]


def test_a_damaged_gate_makes_its_row_stale(two):
    layout, ids = two
    gate = layout.attempt(ids[0], 1) / "gate/1"
    gate.mkdir(parents=True)
    (gate / RECORD).write_text("{")
    damaged, sound = read(layout).rows
    assert (damaged.status, sound.status) == ("stale", "ok")
    assert damaged.reason.startswith(f"records/{damaged.id}/1/gate/1/record.json is ")


def test_a_damaged_profile_is_named_where_it_would_stand(two, cli):
    layout, ids = two
    path = layout.attempt(ids[0], 1) / "profile/1/record.json"
    path.write_text("{")
    assert cli("table", "--no-plots", layout.root).err == ""
    assert {row["status"] for row in read_rows(layout)} == {"ok"}
    assert f"{path.relative_to(layout.root)} is damaged" in read_report(layout)
    assert {row["cell"] for row in read_rows(layout, "profiles")} == {ids[1]}


def test_a_job_measures_its_other_cells(tmp_path):
    """Both cells are complete, so the job only writes their summaries."""
    text = "name: x\nstrategy: [single, ddp]\ntopology: 1x1\nlaunches: 2\ngate: false"
    plan, layout = read_plan_of(tmp_path, text), Layout(tmp_path / "results")
    write_if_changed(layout.plan, plan.to_json())
    for planned in plan.feasible:
        digest = planned.hash
        make_request(layout, planned.id, launches=2, cell_hash=digest)
        for launch in (1, 2):
            record = make_record(
                launch=launch, cell_hash=digest, image=None, seconds={"launch": 1.0}
            )
            write_json(layout.launch(planned.id, 1, launch) / RECORD, record)
    cells = [planned.id for planned in plan.feasible]
    job = {"cells": cells, "rounds": None, "after": None}
    write_json(layout.agenda, {"jobs": {"both": job}})
    path = layout.launch(cells[1], 1, 2) / RECORD
    path.write_text("{")
    assert run_job(layout, "both", project=tmp_path, say=lambda *_: None)
    sound, damaged = (read_json(layout.summary(cell, 1)) for cell in cells)
    assert sound["status"] == "ok"
    assert damaged["status"] == "stale"
    assert damaged["reason"].startswith(f"{path.relative_to(layout.root)} is damaged")
    assert [c.id for c in find_rerun(plan, layout, ["stale"])] == [cells[1]]
