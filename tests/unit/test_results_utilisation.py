"""The utilisation table: what records tell of ranks and GPUs, and older ones do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rankbench.record import Layout
from rankbench.results.read.rows import load
from rankbench.results.render import tables as table
from rankbench.results.sections.utilisation import (
    ABOUT,
    CPU,
    GPUS,
    LOADERS,
    collect_usage,
)
from unit.synthetic import make_cell, plan_cell, write_launch, write_plan

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


def usage_of(layout: Layout) -> list[dict[str, str]]:
    return collect_usage(load(layout).rows)


def test_means_over_launches(tmp_path: Path) -> None:
    one = {"cpu": [1.0, 0.5], "gpus": [0.9, 0.02]}
    two = {"cpu": [0.9, 0.7], "gpus": [0.8, 0.04]}
    (usage,) = usage_of(write(tmp_path, one, two))
    assert (usage[CPU], usage[GPUS]) == ("95 %, 60 %", "85 %, 3 %")
    assert usage["cell"] == "ddp.gloo.1x2.convnet.digits"
    assert LOADERS not in usage


def test_loaders_where_there_are_any(tmp_path: Path) -> None:
    (usage,) = usage_of(write(tmp_path, {"cpu": [0.2], "loaders": 1.9}, num_workers=2))
    assert (usage[CPU], usage[LOADERS]) == ("20 %", "190 %")


def test_many_ranks_are_a_range(tmp_path: Path) -> None:
    cpu = [0.91 + 0.01 * (rank % 5) for rank in range(16)]
    (usage,) = usage_of(write(tmp_path, {"cpu": cpu}))
    assert usage[CPU] == "91 % to 95 % of 16"


def test_a_device_that_nothing_is_known_of(tmp_path: Path) -> None:
    (usage,) = usage_of(write(tmp_path, {"cpu": [1.0, 1.0], "gpus": [0.5, None]}))
    assert usage[GPUS] == "50 %, ?"


def test_in_the_pages(tmp_path: Path) -> None:
    layout = write(tmp_path, {"cpu": [0.98, 0.97], "gpus": [0.71, 0.03]})
    table.build(layout)
    page, text = (layout.table(suffix).read_text() for suffix in ("html", "md"))
    assert '<td class="words">98 %, 97 %</td>' in page
    assert '<td class="words">71 %, 3 %</td>' in page
    assert "98 %, 97 %" in text
    assert ABOUT in page
    assert ABOUT in text


def test_records_of_before_have_no_table(tmp_path: Path) -> None:
    planned = plan_cell(make_cell())
    layout = write_plan(tmp_path, [planned])
    write_launch(layout, planned, wanted=1)
    assert load(layout).rows[0].status == "ok"
    assert usage_of(layout) == []
    table.build(layout)
    assert "Utilisation" not in layout.table("html").read_text()
    assert "Utilisation" not in layout.table("md").read_text()
