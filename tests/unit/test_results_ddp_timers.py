"""DDP's own timers beside ours: which steps, which numbers."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from rankbench.record import Layout
from rankbench.results.sections.ddp_timers import sampled_steps
from unit.synthetic import (
    PHASES,
    make_cell,
    plan_cell,
    write_launch,
    write_plan,
    write_tables,
)

pytestmark = pytest.mark.unit

TIMERS = {
    "forward_ms": 3.0,
    "backward_ms": 5.0,
    "communication_ms": 4.0,
    "overlap_ms": 2.5,
}


@pytest.mark.parametrize(
    ("last", "steps"),
    [
        (1, [0]),
        (9, list(range(9))),
        (10, list(range(10))),
        (99, list(range(10))),
        (100, [*range(10), 99]),
        (250, [*range(10), 99, 199]),
    ],
)
def test_ddp_samples_its_first_steps_and_then_one_in_a_hundred(
    last: int, steps: list[int]
) -> None:
    assert sampled_steps(last) == steps


def write_timed(root: Path, timers: list[dict[str, float]]) -> Layout:
    """One launch of as many ranks, whose steps last 1, 2, 3 ... ms in each phase."""
    ranks = len(timers)
    planned = plan_cell(make_cell("ddp", f"1x{ranks}"))
    layout = write_plan(root, [planned], launches=1)
    directory = write_launch(layout, planned, wanted=1)
    record = json.loads((directory / "record.json").read_text())
    for rank, own in zip(record["ranks"], timers, strict=True):
        rank["details"] = {"ddp_timers": own}
    (directory / "record.json").write_text(json.dumps(record))
    warmup, steps = record["warmup"], record["steps"]
    lasting = np.arange(1, warmup + steps + 1)[:, None] * np.ones(len(PHASES)) * 1e-3
    members = {
        f"rank{rank}/{member}": part
        for rank in range(ranks)
        for member, part in (
            ("warmup", lasting[:warmup]),
            ("seconds", lasting[warmup:]),
            ("loss", np.ones(len(lasting))),
        )
    }
    np.savez(directory / "steps.npz", **members)
    return layout


def read_rows(layout: Layout) -> list[dict[str, str]]:
    write_tables(layout)
    with layout.table("csv", "ddp-timers").open(newline="") as file:
        return list(csv.DictReader(file))


def test_both_are_of_the_same_steps(tmp_path: Path) -> None:
    first = {**TIMERS, "iteration": 4}
    second = {**first, "forward_ms": 5.0}
    rows = read_rows(write_timed(tmp_path, [first, second]))
    cell = "ddp.gloo.1x2.convnet.digits"
    # With 2 warm-up and 8 timed steps, steps 1 to 4 are sampled; the window is steps 3
    # to 10.
    assert [list(row.values()) for row in rows] == [
        [cell, "forward", "2.5", "4", "6.5", "4"],
        [cell, "backward", "2.5", "5", "6.5", "4"],
        [cell, "exposed communication", "2.5", "1.5", "6.5", "4"],
        [cell, "all communication", "", "4", "", "4"],
    ]


def test_page_and_document_explain_them(tmp_path: Path) -> None:
    layout = write_timed(tmp_path, [{**TIMERS, "iteration": 4}])
    write_tables(layout)
    for text in (
        layout.table("md", "ddp-timers").read_text(),
        layout.table("html").read_text().replace("&#39;", "'"),
    ):
        assert "ddp's own timers" in text.lower()
        assert "exposed communication" in text
        assert "DDP times each of its first 10 steps" in text


def test_a_timer_that_is_missing_is_no_row(tmp_path: Path) -> None:
    timers = {"forward_ms": 3.0, "communication_ms": 4.0, "iteration": 4}
    rows = read_rows(write_timed(tmp_path, [timers]))
    assert [row["phase"] for row in rows] == ["forward", "all communication"]


def test_without_timers_there_is_no_file(tmp_path: Path) -> None:
    layout = write_timed(tmp_path, [{}])
    old = layout.table("csv", "ddp-timers")
    old.write_text("of an attempt that is no longer the latest")
    write_tables(layout)
    assert not old.exists()
    assert not layout.table("md", "ddp-timers").exists()
    assert "own timers" not in layout.table("html").read_text()
