"""Published numbers beside measured ones, and the share of loading in a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pages import Words
from rankbench.record import Layout
from unit.synthetic import (
    PHASES,
    edited,
    plan_cell,
    plan_one,
    read_report,
    read_rows,
    write_launches,
    write_plan,
    write_tables,
)

pytestmark = pytest.mark.unit

SINGLE = "single.none.1x1.convnet.digits"
DDP = "ddp.gloo.1x2.convnet.digits"
NCCL = "ddp.nccl.1x2.convnet.digits"
PAPER: list[dict[str, Any]] = [
    {"label": "one", "cell": SINGLE, "throughput": 332, "step_ms": 193},
    {"label": "two", "cell": DDP, "throughput": 516, "memory_mib": [9114, 7782]},
    {"label": "two, nccl", "cell": NCCL, "throughput": 583, "accuracy": 0.9},
    {"label": "a picture", "cell": DDP},
]
PAPER[0] |= {"memory_mib": [7885], "accuracy": 0.98}
PAPER[1] |= {"load_ms": 6.4, "note": "the log says | 500"}
STUDY = {
    "source": {"title": "A <study>", "hardware": "V100", "base": "one"},
    "rows": PAPER,
}


def write_study(root: Path) -> Layout:
    """Two rows that are measured, and one that cannot run."""
    single, ddp = plan_cell("single"), plan_cell("ddp", "1x2")
    nccl = plan_cell("ddp", "1x2", backend="nccl", infeasible="no GPU here")
    layout = write_plan(root, [single, ddp, nccl], study=STUDY)
    write_launches(layout, single, rate=800)
    write_launches(layout, ddp, rate=1500)
    return layout


@pytest.fixture(scope="module")
def layout(tmp_path_factory) -> Layout:
    layout = write_study(tmp_path_factory.mktemp("published"))
    write_tables(layout)
    return layout


def read_lines(layout: Layout) -> dict[tuple[str, str], dict[str, str]]:
    rows = read_rows(layout, "published")
    return {(row["label"], row["quantity"]): row for row in rows}


def test_every_published_number_has_a_line(layout):
    expected = {
        (row["label"], key)
        for row in PAPER
        for key in row.keys() - {"label", "cell", "note"}
    }
    assert read_lines(layout).keys() == expected | {("a picture", "")}


@pytest.mark.parametrize(
    ("label", "quantity", "expected"),
    [
        ("two", "throughput", {"cell": DDP, "status": "ok", "base": "one"}),
        # As in the table, the means are 1.005 times the nominal rates.
        ("two", "throughput", {"measured": "1507", "published": "516"}),
        # The base is its own base.
        ("one", "throughput", {"ratio": "1", "ratio_lo": "", "published_ratio": "1"}),
        # Of several devices the largest counts.
        ("two", "memory_mib", {"published": "9114", "published_each": "9114 7782"}),
        ("two", "memory_mib", {"measured": "351"}),
        # A number that the base lacks has no published ratio, and accuracy has none.
        ("two", "load_ms", {"published": "6.4", "published_ratio": ""}),
        ("one", "accuracy", {"measured": "0.97", "published": "0.98"}),
        ("one", "accuracy", {"ratio": "", "published_ratio": ""}),
        # A row that cannot run keeps what was published.
        ("two, nccl", "throughput", {"status": "unsupported", "published": "583"}),
        ("two, nccl", "throughput", {"reason": "no GPU here", "measured": ""}),
        ("two, nccl", "throughput", {"ratio": ""}),
    ],
)
def test_a_line(layout, label, quantity, expected):
    assert read_lines(layout)[label, quantity].items() >= expected.items()


def test_each_side_is_divided_by_its_own_base(layout):
    line = read_lines(layout)["two", "throughput"]
    assert float(line["ratio"]) == pytest.approx(1500 / 800, rel=1e-3)
    assert float(line["ratio_lo"]) < 1500 / 800 < float(line["ratio_hi"])
    assert float(line["published_ratio"]) == pytest.approx(516 / 332, rel=1e-3)
    memory = read_lines(layout)["two", "memory_mib"]
    assert float(memory["published_ratio"]) == pytest.approx(9114 / 7885, rel=1e-3)
    assert read_lines(layout)["two", "load_ms"]["ratio"]


def test_the_table_itself_knows_nothing_of_it(layout, tmp_path):
    plain = write_plan(tmp_path / "plain", [])
    write_tables(plain)
    header = plain.table("csv").read_text().splitlines()[0]
    assert layout.table("csv").read_text().splitlines()[0] == header
    assert "332" not in layout.table("md").read_text()
    assert not plain.section("published").exists()


def test_the_page_has_the_source_the_reading_and_the_notes(layout):
    page = Words(layout.report.read_text())
    assert "study" not in page.tags
    for said in (
        *("title A <study>", "compare no absolute value across the two sides"),
        *("base one: single.none.1x1 ", "two the log says | 500", "9114 7782"),
        *("All cells: convnet.digits.", "published / its base"),
    ):
        assert said in page.line


def test_a_source_without_numbers_is_shown_all_the_same(tmp_path):
    study = {"source": {"title": "a lab", "note": "its tables are empty"}, "rows": []}
    layout = write_plan(tmp_path, [plan_cell("single")], study=study)
    with edited(layout.plan) as plan:
        plan["experiment"]["override"] = "laptop"
    write_tables(layout)
    assert layout.section("published").read_text().count("\n") == 1
    page = layout.report.read_text()
    assert "its tables are empty" in page
    assert "override laptop: what was measured is smaller" in read_report(layout)
    # Every link of the page leads to an existing section.
    links = {link[1:] for link in Words(page).links if link.startswith("#")}
    assert "section-published" in links
    assert links <= {*Words(page).ids}


@pytest.mark.parametrize("damage", [{"lable": "one"}, {"cell": "gone"}, None])
def test_a_damaged_study_is_named(tmp_path, damage):
    layout = write_study(tmp_path)
    with edited(layout.plan) as plan:
        rows = plan["experiment"]["study"]["rows"]
        rows[0] = damage and rows[0] | damage
    with pytest.raises(ValueError, match=r"plan\.json is damaged"):
        write_tables(layout)


# --- loading ------------------------------------------------------------------------


def test_loading_is_told_from_the_rest_of_a_step(tmp_path):
    layout, planned = plan_one(tmp_path, "ddp", "1x1", num_workers=2, augment="affine")
    write_launches(layout, planned)
    write_tables(layout)
    (row,) = read_rows(layout, "phases")
    assert (row["num_workers"], row["augment"]) == ("2", "affine")
    parts = [float(row[f"{name}_ms"]) for name in ("load", "transfer", "compute")]
    # The phases of synthetic steps have these shares.
    shares = [part / sum(parts) for part in parts]
    assert shares == pytest.approx([0.06, 0.02, 0.92], rel=1e-3)
    assert float(row["load_share"]) == pytest.approx(0.06, rel=1e-3)
    assert float(row["load_ms_lo"]) < parts[0] < float(row["load_ms_hi"])


# The synthetic host has two cores, and `single` one rank.
@pytest.mark.parametrize(
    ("phases", "workers", "remedy"),
    [
        (PHASES, 0, None),
        (["load", "transfer"], 0, "more workers would help, more devices would not"),
        (["load", "transfer"], 1, "all 2 cores already; cheaper loading would help"),
    ],
)
def test_loading_that_dominates_is_explained(tmp_path, phases, workers, remedy):
    planned = plan_cell("single", num_workers=workers, phases=phases)
    layout = write_plan(tmp_path, [planned])
    write_launches(layout, planned)
    write_tables(layout)
    text = read_report(layout)
    said = f"loading takes 75% of the step with num_workers {workers}: "
    assert (said in text) == (remedy is not None)
    assert remedy is None or remedy in text
