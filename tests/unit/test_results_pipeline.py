"""The section on pipelines."""

from __future__ import annotations

from typing import Any

import pytest

from rankbench.record import Layout
from unit.synthetic import (
    edited,
    make_cell,
    plan_cell,
    plan_one,
    read_rows,
    write_launches,
    write_plan,
    write_tables,
)

pytestmark = pytest.mark.unit


def plan_pipeline(count: int) -> dict[str, Any]:
    options = {"schedule": "gpipe", "microbatches": count}
    cell = make_cell("pipeline", "1x2", backend="gloo", options=options)
    phases = ["load", "transfer", "pipeline", "update"]
    return plan_cell(cell, suffix=f".microbatches={count}", phases=phases)


def tell(layout: Layout, planned: dict[str, Any], bubbles: tuple[float, float]) -> None:
    """Launches whose ranks have waited for these shares of a step."""
    for path in layout.records.glob(f"{planned['id']}/1/*/record.json"):
        with edited(path) as record:
            count = planned["cell"]["options"]["microbatches"]
            for rank, bubble in zip(record["ranks"], bubbles, strict=True):
                rank["details"] = {
                    "microbatches": count,
                    "bubble": bubble,
                    "ideal_bubble": 1 / (count + 1),
                }


@pytest.fixture
def layout(tmp_path) -> Layout:
    single = plan_cell(make_cell("single"))
    pipelines = [plan_pipeline(count) for count in (2, 8)]
    layout = write_plan(tmp_path, [single, *pipelines])
    write_launches(layout, single, rate=800)
    for planned, rate, bubble in zip(pipelines, (900, 1200), (0.4, 0.16), strict=True):
        write_launches(layout, planned, rate=rate)
        tell(layout, planned, (bubble, bubble + 0.1))
    return layout


def test_bubble_stands_beside_the_ideal_and_the_speedup(layout):
    write_tables(layout)
    rows = read_rows(layout, "pipeline")
    assert [row["microbatches"] for row in rows] == ["2", "8"]
    assert [row["ranks"] for row in rows] == ["2", "2"]
    assert [row["bubble"] for row in rows] == ["0.45", "0.21"]
    assert [row["ideal_bubble"] for row in rows] == ["0.3333", "0.1111"]
    assert [float(row["speedup"]) for row in rows] == pytest.approx([1.125, 1.5])
    page = layout.report.read_text()
    assert "<summary>Pipelines</summary>" in page
    assert '<td class="number">0.3333</td>' in page


def test_without_a_pipeline_there_is_no_word_of_it(tmp_path):
    layout, single = plan_one(tmp_path, "single")
    write_launches(layout, single)
    write_tables(layout)
    assert not layout.section("pipeline").exists()
    assert "Pipelines" not in layout.report.read_text()
