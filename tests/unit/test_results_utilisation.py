"""The utilisation of ranks and GPUs, also from older records."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from rankbench.record import Layout
from rankbench.results.elements.section import Row
from rankbench.results.numbers.result_set import read
from rankbench.results.sections import utilisation
from unit.synthetic import make_cell, plan_cell, write_launch, write_plan, write_tables

pytestmark = pytest.mark.unit


def write(root: Path, *launches: dict[str, Any], **changes: Any) -> Layout:
    """One cell; a launch is `cpu`, `loaders` of its ranks and `gpus` of its devices."""
    planned = plan_cell(make_cell("ddp", f"1x{len(launches[0]['cpu'])}", **changes))
    layout = write_plan(root, [planned])
    for number, one in enumerate(launches, start=1):
        place = write_launch(layout, planned, number, wanted=len(launches))
        record = json.loads((place / "record.json").read_text())
        for rank, cpu in zip(record["ranks"], one["cpu"], strict=True):
            rank["cpu_utilisation"] = cpu
            rank["loader_utilisation"] = one.get("loaders", 0.0)
        if "gpus" in one:
            record["devices"] = [{"utilisation_mean": mean} for mean in one["gpus"]]
        (place / "record.json").write_text(json.dumps(record))
    return layout


def usage_of(layout: Layout) -> tuple[Row, list[str]]:
    """The row of the one cell, and the headings of the table."""
    content = utilisation.make(read(layout))
    assert content is not None
    (grid,) = utilisation.SECTION.grids(content)
    (row,) = content.rows
    return row, list(grid.columns)


def test_means_over_launches(tmp_path: Path) -> None:
    one = {"cpu": [1.0, 0.5], "gpus": [0.9, 0.02]}
    two = {"cpu": [0.9, 0.7], "gpus": [0.8, 0.04]}
    usage, headings = usage_of(write(tmp_path, one, two))
    assert (usage["cpu"], usage["gpu"]) == ("95 %, 60 %", "85 %, 3 %")
    assert usage["cell"] == "ddp.gloo.1x2.convnet.digits"
    assert "loaders" not in usage
    assert headings == ["cell", "CPU of each rank", "GPU of each device"]


def test_loaders_where_there_are_any(tmp_path: Path) -> None:
    layout = write(tmp_path, {"cpu": [0.2], "loaders": 1.9}, num_workers=2)
    usage, headings = usage_of(layout)
    assert (usage["cpu"], usage["loaders"]) == ("20 %", "190 %")
    assert headings == ["cell", "CPU of each rank", "its loaders"]


def test_many_ranks_are_a_range(tmp_path: Path) -> None:
    cpu = [0.91 + 0.01 * (rank % 5) for rank in range(16)]
    usage, _ = usage_of(write(tmp_path, {"cpu": cpu}))
    assert usage["cpu"] == "91 % to 95 % of 16"


def test_a_device_that_nothing_is_known_of(tmp_path: Path) -> None:
    usage, _ = usage_of(write(tmp_path, {"cpu": [1.0, 1.0], "gpus": [0.5, None]}))
    assert usage["gpu"] == "50 %, ?"


def test_in_the_pages(tmp_path: Path) -> None:
    layout = write(tmp_path, {"cpu": [0.98, 0.97], "gpus": [0.71, 0.03]})
    write_tables(layout)
    page = layout.table("html").read_text()
    text = layout.table("md", "utilisation").read_text()
    assert "<td>98 %, 97 %</td>" in page
    assert "<td>71 %, 3 %</td>" in page
    assert "98 %, 97 %" in text
    assert utilisation.SECTION.reading in page
    assert utilisation.SECTION.reading in text
    assert "[Utilisation](utilisation.md)" in layout.table("md").read_text()
    with layout.table("csv", "utilisation").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert row == {
        "cell": "ddp.gloo.1x2.convnet.digits",
        "cpu": "98 %, 97 %",
        "loaders": "",
        "gpu": "71 %, 3 %",
    }


def test_records_of_before_have_no_table(tmp_path: Path) -> None:
    planned = plan_cell(make_cell())
    layout = write_plan(tmp_path, [planned])
    write_launch(layout, planned, wanted=1)
    found = read(layout)
    assert found.results.rows[0].status == "ok"
    assert utilisation.make(found) is None
    write_tables(layout)
    for suffix in ("csv", "md", "tex"):
        assert not layout.table(suffix, "utilisation").exists()
    assert "Utilisation" not in layout.table("html").read_text()
    assert "Utilisation" not in layout.table("md").read_text()
