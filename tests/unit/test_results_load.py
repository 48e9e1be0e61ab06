"""Rows from plan and records: statuses, marks, and damaged files."""

from __future__ import annotations

import pytest

from rankbench.record import Layout
from rankbench.results.numbers.result_set import read
from unit.synthetic import (
    plan_cell,
    plan_one,
    write_example,
    write_launch,
    write_launches,
    write_plan,
)

pytestmark = pytest.mark.unit


PLANNED = plan_cell("ddp", "1x2")


@pytest.fixture
def layout(tmp_path):
    return write_plan(tmp_path, [PLANNED])


def load_row(layout):
    (row,) = read(layout).rows
    return row


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
def test_a_row_by_its_launches(layout, done, more, status, launches):
    write_launches(layout, PLANNED, count=done, **more)
    row = load_row(layout)
    assert (row.status, (row.ok, row.wanted)) == (status, launches)
    assert (row.reason is None) == (status == "ok")
    assert len(row.launches) == (done if status == "ok" else 0)
    assert row.attempt == (1 if done else None)


def test_failed_launch_fails_the_row(layout):
    write_launches(layout, PLANNED, count=5)
    write_launch(layout, PLANNED, 6, status="oom", reason="rank 1: out of memory")
    row = load_row(layout)
    assert (row.status, row.reason, row.ok) == ("oom", "rank 1: out of memory", 5)
    assert row.launches.empty


def test_unsupported_row_stays_even_if_records_exist(tmp_path):
    layout = write_plan(tmp_path, [PLANNED | {"infeasible": "no such device"}])
    write_launches(layout, PLANNED)
    row = load_row(layout)
    assert (row.status, row.reason) == ("unsupported", "no such device")
    assert (row.ok, row.wanted, row.attempt, row.records) == (0, 0, None, [])


def test_latest_attempt_with_a_record_counts_alone(layout):
    write_launches(layout, PLANNED, attempt=1)
    write_launches(layout, PLANNED, attempt=2, count=2, wanted=2)
    layout.launch(PLANNED["id"], 3, 1).mkdir(parents=True)
    row = load_row(layout)
    assert (row.attempt, row.ok, len(row.launches)) == (2, 2, 2)


def test_changed_cell_makes_the_row_stale(tmp_path, layout):
    write_launches(layout, PLANNED)
    changed = plan_cell("ddp", "1x2", momentum=0.5)
    assert changed["id"] == PLANNED["id"]
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
def test_another_image_makes_the_row_stale(tmp_path, wanted, measured, stale):
    cell = PLANNED | {"image": wanted and wanted["name"]}
    layout = write_plan(tmp_path, [cell], images={"gloo-cpu": wanted})
    write_launches(layout, PLANNED, image=measured)
    row = load_row(layout)
    assert row.status == ("stale" if stale else "ok")
    assert not stale or "another image" in row.reason
    assert not stale or "about 804 samples/s" in row.reason


def write_gateless(layout):
    write_launches(layout, PLANNED, gate=None)


def write_replaced(layout):
    """Code of a launch that was replaced does not count."""
    other = {"status": "cancelled", "reason": "interrupted", "cause": "user"}
    write_launch(layout, PLANNED, 7, **other, code={"cell": "f" * 64})
    write_launches(layout, PLANNED)


def differ(**last):
    """The last launch differs from the others."""

    def write(layout):
        write_launches(layout, PLANNED, count=5)
        write_launch(layout, PLANNED, 6, **last)

    return write


HOST = {"host": "node2", "cpu": "Example CPU", "cores": 2, "gpus": []}
HOST |= {"memory_gib": 23.4, "kernel": "6.1"}


@pytest.mark.parametrize(
    ("write", "marks"),
    [
        (write_gateless, ("unchecked",)),
        (write_replaced, ()),
        (differ(code={"cell": "f" * 64}), ("other-code",)),
        (differ(code={"rank": "f" * 64}), ("other-code",)),
        (differ(hosts=[HOST]), ("mixed-hosts",)),
        (differ(software={"torch": "2.6.0"}), ("mixed-torch",)),
        (differ(marks=["functional"]), ("functional",)),
    ],
)
def test_marks_of_a_row_that_is_ok(tmp_path, write, marks):
    """Those of plan and records are joined."""
    layout = write_plan(tmp_path, [PLANNED | {"marks": ["oversubscribed"]}])
    write(layout)
    row = load_row(layout)
    assert (row.status, {*row.marks}) == ("ok", {*marks, "oversubscribed"})


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"schema": 1}', '{"schema": 3}', '{"schema": 3, "cells": [{}]}'],
)
def test_damaged_plan_is_named(tmp_path, text):
    with pytest.raises(ValueError, match=r"json does not exist: no experiment was run"):
        read(Layout(tmp_path))
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(ValueError, match=r"plan\.json"):
        read(Layout(tmp_path))


def test_example_has_the_statuses_it_promises(tmp_path):
    rows = read(write_example(tmp_path)).rows
    statuses = [row.status for row in rows]
    assert statuses == ["ok"] * 6 + ["unsupported", "crashed", "not-run", "stale"]


def test_a_row_that_trains_something_else_has_a_reason_and_no_speed(layout):
    off = {"status": "mismatch", "reason": "fc.bias is off by 0.9"}
    refused = write_launch(layout, PLANNED, **off)
    gate = layout.attempt(PLANNED["id"], 1) / "gate"
    gate.mkdir()
    refused.rename(gate / "1")
    row = load_row(layout)
    assert (row.status, row.reason) == (*off.values(),)
    assert (row.records, row.attempt) == ([], 1)


def test_single_needs_no_gate(tmp_path):
    layout, planned = plan_one(tmp_path, "single")
    write_launches(layout, planned, gate=None)
    assert load_row(layout).marks == ()
