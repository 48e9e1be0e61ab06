"""Rows from plan and records: statuses, marks, and damaged files."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rankbench.record import Layout
from rankbench.results.numbers.result_set import read
from unit.synthetic import (
    edited,
    make_cell,
    plan_cell,
    plan_one,
    write_example,
    write_launch,
    write_launches,
    write_plan,
)

pytestmark = pytest.mark.unit


@pytest.fixture
def planned():
    return plan_cell(make_cell("ddp", "1x2"))


@pytest.fixture
def layout(tmp_path, planned):
    return write_plan(tmp_path, [planned])


def load_row(layout):
    (row,) = read(layout).rows
    return row


OOM = {"status": "oom", "reason": "rank 1: out of memory"}


@pytest.mark.parametrize(
    ("done", "more", "status", "launches"),
    [
        (6, {}, "ok", (6, 6)),
        (0, {}, "not-run", (0, 6)),
        (3, {}, "not-run", (3, 6)),
        # The number of launches is that of the records.
        (2, {"wanted": 2}, "ok", (2, 2)),
    ],
)
def test_a_row_by_its_launches(layout, planned, done, more, status, launches):
    write_launches(layout, planned, count=done, **more)
    row = load_row(layout)
    assert (row.status, (row.ok, row.wanted)) == (status, launches)
    assert (row.reason is None) == (status == "ok")
    assert len(row.launches) == (done if status == "ok" else 0)
    assert row.attempt == (1 if done else None)


def test_failed_launch_fails_the_row(layout, planned):
    write_launches(layout, planned, count=5)
    write_launch(layout, planned, 6, **OOM)
    row = load_row(layout)
    assert (row.status, row.reason, row.ok) == (*OOM.values(), 5)
    assert row.launches.empty


def test_unsupported_row_stays_even_if_records_exist(tmp_path, planned):
    layout = write_plan(tmp_path, [planned | {"infeasible": "no such device"}])
    write_launches(layout, planned)
    row = load_row(layout)
    assert (row.status, row.reason) == ("unsupported", "no such device")
    assert (row.ok, row.wanted, row.attempt, row.records) == (0, 0, None, [])


def test_latest_attempt_with_a_record_counts_alone(layout, planned):
    write_launches(layout, planned, attempt=1)
    write_launches(layout, planned, attempt=2, count=2, wanted=2)
    layout.launch(planned["id"], 3, 1).mkdir(parents=True)
    row = load_row(layout)
    assert (row.attempt, row.ok, len(row.launches)) == (2, 2, 2)


def test_changed_cell_makes_the_row_stale(tmp_path, layout, planned):
    write_launches(layout, planned)
    changed = plan_cell(replace(make_cell("ddp", "1x2"), momentum=0.5))
    assert changed["id"] == planned["id"]
    row = load_row(write_plan(tmp_path, [changed]))
    assert (row.status, row.records) == ("stale", [])
    assert row.reason.startswith("measured before the cell's definition changed")


GLOO = {"name": "gloo-cpu", "recipe": "r1", "sha256": "s1"}


@pytest.mark.parametrize(
    ("wanted", "measured", "stale"),
    [
        (GLOO, GLOO, False),
        # The image was not built when the run was planned, so recipes are compared.
        (GLOO | {"sha256": None}, GLOO, False),
        (GLOO | {"sha256": None, "recipe": "r2"}, GLOO, True),
        # An image that was built again from the same recipe may have newer packages.
        (GLOO | {"sha256": "s2"}, GLOO, True),
        # A host lacked the image, so nothing ran in it.
        (GLOO, GLOO | {"sha256": None}, False),
        (GLOO, None, True),
        (None, GLOO, True),
    ],
)
def test_another_image_makes_the_row_stale(tmp_path, planned, wanted, measured, stale):
    cell = planned | {"image": wanted and wanted["name"]}
    layout = write_plan(tmp_path, [cell], images={"gloo-cpu": wanted})
    write_launches(layout, planned, image=measured)
    row = load_row(layout)
    assert row.status == ("stale" if stale else "ok")
    if stale:
        said = "measured in another image than the plan's; it had about 804 samples/s"
        assert row.reason == said


def test_marks_of_plan_and_records_are_joined(tmp_path, planned):
    layout = write_plan(tmp_path, [planned | {"marks": ["oversubscribed"]}])
    write_launches(layout, planned, marks=["functional"])
    assert load_row(layout).marks == ("functional", "oversubscribed")


def test_other_code_is_a_mark_not_a_status(layout, planned):
    write_launches(layout, planned, code={"cell": "f" * 64})
    row = load_row(layout)
    assert (row.status, row.marks) == ("ok", ("other-code",))


def test_code_of_a_replaced_launch_does_not_count(layout, planned):
    other = {"status": "cancelled", "reason": "interrupted", "cause": "user"}
    write_launch(layout, planned, 7, **other, code={"cell": "f" * 64})
    write_launches(layout, planned)
    row = load_row(layout)
    assert (row.status, row.marks) == ("ok", ())


@pytest.mark.parametrize(
    ("member", "value", "mark"),
    [
        ("hosts", "node2", "mixed-hosts"),
        ("software", "2.6.0", "mixed-torch"),
    ],
)
def test_launches_that_differ_are_marked(layout, planned, member, value, mark):
    write_launches(layout, planned, count=5)
    path = write_launch(layout, planned, 6) / "record.json"
    with edited(path) as record:
        if member == "hosts":
            record["hosts"][0]["host"] = value
        else:
            record["software"]["torch"] = value
    assert load_row(layout).marks == (mark,)


def test_missing_plan_says_what_to_do(tmp_path):
    with pytest.raises(ValueError, match=r"json does not exist: no experiment was run"):
        read(Layout(tmp_path))


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"schema": 1}', '{"schema": 2}', '{"schema": 2, "cells": [{}]}'],
)
def test_damaged_plan_is_named(tmp_path, text):
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(ValueError, match=r"plan\.json"):
        read(Layout(tmp_path))


def test_example_has_the_statuses_it_promises(tmp_path):
    rows = read(write_example(tmp_path)).rows
    statuses = [row.status for row in rows]
    assert statuses == ["ok"] * 6 + ["unsupported", "crashed", "not-run", "stale"]


def test_a_row_that_trains_something_else_has_a_reason_and_no_speed(tmp_path):
    layout, planned = plan_one(tmp_path, "ddp", "1x2")
    refused = write_launch(
        layout, planned, status="mismatch", reason="fc.bias is off by 0.9"
    )
    gate = layout.attempt(planned["id"], 1) / "gate"
    gate.mkdir()
    refused.rename(gate / "1")
    (row,) = read(layout).rows
    assert (row.status, row.reason) == ("mismatch", "fc.bias is off by 0.9")
    assert (row.records, row.attempt) == ([], 1)


def test_a_row_without_a_gate_is_marked(tmp_path):
    cells = [plan_cell(make_cell("single")), plan_cell(make_cell("ddp"))]
    layout = write_plan(tmp_path, cells)
    for planned in cells:
        write_launches(layout, planned, gate=None)
    single, ddp = read(layout).rows
    assert (single.marks, ddp.marks) == ((), ("unchecked",))
