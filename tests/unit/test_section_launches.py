"""The section that lists every launch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankbench.results.numbers.result_set import read
from rankbench.results.sections import launches
from unit.synthetic import make_cell, plan_cell, write_launch, write_plan

pytestmark = pytest.mark.unit

SINGLE, DDP = plan_cell(make_cell("single")), plan_cell(make_cell("ddp"))


def test_launches_of_all_cells_stand_in_the_order_of_time(tmp_path: Path) -> None:
    layout = write_plan(tmp_path, [SINGLE, DDP], launches=2)
    started = {(SINGLE["id"], 1): 3, (SINGLE["id"], 2): 1, (DDP["id"], 1): 2}
    for (cell, number), hour in started.items():
        planned = SINGLE if cell == SINGLE["id"] else DDP
        place = write_launch(layout, planned, number, wanted=2, rate=800 + hour)
        record = json.loads((place / "record.json").read_text())
        record["started"] = f"2026-11-22T0{hour}:00:00+00:00"
        (place / "record.json").write_text(json.dumps(record))
    write_launch(layout, DDP, 2, wanted=2, status="crashed", reason="rank 0 died")
    content = launches.make(read(layout))
    assert content is not None
    frame = launches.SECTION.frame(content)
    # The DDP cell is not ok, so the table uses none of its launches.
    assert frame["cell"].tolist() == [SINGLE["id"], SINGLE["id"]]
    assert frame["launch"].tolist() == [2, 1]
    assert frame["throughput"].tolist() == pytest.approx([801, 803])


def test_nothing_measured(tmp_path: Path) -> None:
    assert launches.make(read(write_plan(tmp_path, [SINGLE]))) is None
