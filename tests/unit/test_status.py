"""The state of a cell: at rest, queued, running."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from factories import make_record, read_plan_of
from rankbench.launch.hosts.base import CellJob
from rankbench.launch.job.claim import Owner, claim_next, make_request, read_request
from rankbench.plan import Plan
from rankbench.project.status import (
    State,
    find_jobs,
    find_rerun,
    find_state,
    find_turns,
)
from rankbench.record import Layout, write_json

pytestmark = pytest.mark.unit

CELL = "single.none.1x1.convnet.digits"
TEXT = "name: x\nstrategy: [single, ddp]\nbackend: [gloo, mpi]\ntopology: 1x1"


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return read_plan_of(tmp_path, TEXT)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "results")


def ask(layout: Layout, plan: Plan, cell_hash: str | None = None) -> None:
    wanted = cell_hash or plan.cells[CELL].hash
    make_request(layout, CELL, launches=2, cell_hash=wanted)


def add_record(layout: Layout, launch: int, **values: Any) -> None:
    asked = read_request(layout, CELL)
    assert asked is not None
    common = {"cell_hash": asked.cell_hash, "job_id": None, "image": None}
    record = make_record(launch=launch, **common, **values)
    write_json(layout.launch(CELL, 1, launch) / "record.json", record)


def state_of(plan: Plan, layout: Layout, job: CellJob | None = None) -> State:
    return find_state(plan, layout, plan.cells[CELL], job)


def test_a_cell_that_nobody_asked_for(plan, layout):
    assert state_of(plan, layout) == State("not-run", "", "", "")


def test_a_cell_that_cannot_run(plan, layout):
    state = find_state(plan, layout, plan.cells["ddp.mpi.1x1.convnet.digits"])
    assert state.status == "unsupported"
    assert "MPI" in state.reason


def test_a_measured_cell_tells_job_and_hosts(plan, layout):
    ask(layout, plan)
    add_record(layout, 1, hosts=[{"host": "a"}, {"host": "b"}])
    add_record(layout, 2, hosts=[{"host": "a"}, {"host": "c"}])
    assert state_of(plan, layout) == State("ok", "2/2", "", "on a,c")


def test_a_failed_launch_tells_where_it_was_started(plan, layout):
    ask(layout, plan)
    add_record(layout, 1, status="crashed", launcher={"hosts": ["a"]})
    add_record(layout, 2, status="crashed")
    state = state_of(plan, layout)
    assert state == State("crashed", "0/2", "it crashed", "on an unknown host")
    assert state.has_failed
    assert [c.id for c in find_rerun(plan, layout, ["failed"])] == [CELL]
    assert find_rerun(plan, layout, ["stale"]) == []


def test_a_stale_cell_is_measured_again_only_as_such(plan, layout):
    ask(layout, plan, cell_hash="another")
    add_record(layout, 1, hosts=[{"host": "a"}])
    assert state_of(plan, layout).status == "stale"
    assert [c.id for c in find_rerun(plan, layout, ["stale"])] == [CELL]
    assert find_rerun(plan, layout, ["failed"]) == []


@pytest.mark.parametrize(
    ("job", "state"),
    [
        (
            CellJob("7", CELL, "PENDING", "", "Resources"),
            State("queued", "0/2", "", "job 7 queued (Resources)"),
        ),
        (
            CellJob("7", CELL, "RUNNING", "a[1-2]", "None"),
            State("running", "0/2", "", "job 7 running on a[1-2]"),
        ),
    ],
)
def test_a_job_in_the_queue(plan, layout, job, state):
    ask(layout, plan)
    assert state_of(plan, layout, job) == state


@pytest.mark.parametrize("folder", [".", "gate"])
def test_a_launch_of_this_machine_runs(plan, layout, folder):
    ask(layout, plan)
    claim_next(layout.attempt(CELL, 1) / folder)
    state = state_of(plan, layout)
    assert (state.status, state.launches) == ("running", "0/2")
    assert state.where.startswith("on ")


def test_cells_wait_for_their_turn_while_the_run_goes_on(plan, layout):
    ask(layout, plan)
    owner = asdict(Owner.of(os.getpid()))
    jobs = {"this-machine": {"cells": [CELL]}}
    write_json(layout.agenda, {"owner": owner, "jobs": jobs})
    (turn,) = find_turns(layout).values()
    assert turn.startswith(f"waits for its turn in process {os.getpid()} on ")
    state = find_state(plan, layout, plan.cells[CELL], turn=turn)
    assert state == State("queued", "0/2", "", turn)
    add_record(layout, 1)
    add_record(layout, 2)
    assert find_state(plan, layout, plan.cells[CELL], turn=turn).status == "ok"
    # A process that has ended.
    write_json(layout.agenda, {"owner": {**owner, "started": 1}, "jobs": jobs})
    assert find_turns(layout) == {}


def test_without_slurm_no_queue_is_asked(plan, tmp_path):
    assert find_jobs(plan, Layout(tmp_path), tmp_path) == {}
