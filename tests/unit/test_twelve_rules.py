"""The twelve rules of Hoefler and Belli (SC'15), as far as a test can hold them.

docs/method.md tells for each where it is kept. Rules 8 and 10 are about judgement: here
only that what they ask for is there. Of 11 and 12 test_results_plots.py holds that the
ideal is drawn, and what lines may join.
"""

from __future__ import annotations

import ast
import csv
import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

import rankbench.results
from rankbench.cell import Cell
from rankbench.record import Layout, read_json
from rankbench.results.numbers.fit import Fit
from rankbench.results.numbers.measures import measure
from rankbench.results.numbers.statistics import Estimate, geometric_mean
from rankbench.results.read.launches import read_launch
from rankbench.results.sections.table import SECTION
from unit.synthetic import (
    make_cell,
    plan_cell,
    write_example,
    write_launch,
    write_plan,
    write_tables,
)

pytestmark = pytest.mark.unit

ROOM = Path(rankbench.results.__file__).parent
METHOD = Path(__file__).resolve().parents[2] / "docs" / "method.md"

# The medians are over the launches of the row itself.
INTERVALS = [
    name
    for name, kind in SECTION.columns.items()
    if kind is Estimate and name not in ("speedup", "efficiency", *SECTION.optional)
]

# Functions of scipy and numpy that assume a normal distribution.
NORMAL_THEORY = {
    *("ttest_ind", "ttest_rel", "ttest_1samp", "f_oneway", "sem", "tukey_hsd"),
    *("std", "var", "nanstd", "nanvar", "zscore", "pearsonr", "linregress"),
}


@pytest.fixture(scope="module")
def layout(tmp_path_factory) -> Layout:
    found = write_example(tmp_path_factory.mktemp("example"))
    write_tables(found)
    return found


@pytest.fixture(scope="module")
def rows(layout) -> list[dict[str, str]]:
    with layout.table("csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_page_has_all_twelve() -> None:
    numbers = re.findall(r"^\| (\d+) \|", METHOD.read_text(), re.MULTILINE)
    assert numbers == [str(n) for n in range(1, 13)]


def test_files_that_the_page_names_are_there() -> None:
    root = METHOD.parents[1]
    for name in re.findall(r"`((?:tests|benchmarks)/[\w/.]+)`", METHOD.read_text()):
        assert (root / name).exists(), name
    names = re.findall(r"`results/([\w/]+\.py)`", METHOD.read_text())
    assert names
    for name in names:
        assert (ROOM / name).exists(), name


def test_1_a_speedup_names_its_base_with_its_absolute_value(rows) -> None:
    measured = [row for row in rows if row["speedup"]]
    assert measured
    for row in measured:
        assert re.search(r"single\.none\.1x1\S* = [\d.]+/s", row["base"]), row["cell"]


def test_2_every_planned_cell_has_a_row_and_its_absence_a_reason(layout, rows) -> None:
    planned = [cell["id"] for cell in read_json(layout.plan)["cells"]]
    assert [row["cell"] for row in rows] == planned
    for row in rows:
        assert bool(row["throughput"]) == (row["status"] == "ok")
        assert bool(row["reason"]) == (row["status"] != "ok")


def test_3_a_rate_is_work_over_time_not_a_mean_of_rates(tmp_path) -> None:
    planned = plan_cell(make_cell("single"))
    directory = write_launch(write_plan(tmp_path, [planned]), planned, rate=800)
    with np.load(directory / "steps.npz") as members:
        kept = dict(members)
    uneven = kept["rank0/seconds"] * np.array([1, 3] * 4)[:, None] / 2
    np.savez(directory / "steps.npz", **kept | {"rank0/seconds": uneven})
    rates = 64 / uneven.sum(axis=1)
    harmonic = len(rates) / np.sum(1 / rates)
    found = measure(read_launch(directory)).throughput
    assert found == pytest.approx(harmonic)
    assert found < rates.mean()


def test_4_a_ratio_is_one_of_summaries() -> None:
    above, below = np.random.default_rng(1).lognormal(0, 0.02, (2, 8))
    sides = {"above": above, "below": below}
    fit = Fit({name: list(enumerate(side)) for name, side in sides.items()})
    ratio = fit.ratio("above", "below").bracket(0.95).value
    means = geometric_mean(above.tolist()).value / geometric_mean(below.tolist()).value
    assert ratio == pytest.approx(means)


def test_6_nothing_but_brackets_and_steady_states_assumes_a_distribution() -> None:
    """Brackets are simulated with other distributions (test_results_fit.py)."""
    allowed = {
        "comparison.py": {"var"},
        "statistics.py": {"std", "var"},
        "steady.py": {"std"},
    }
    paths = sorted(ROOM.rglob("*.py"))
    assert len(paths) > 50
    for path in paths:
        names = {
            node.attr if isinstance(node, ast.Attribute) else node.id
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Attribute | ast.Name)
        }
        assert not names & NORMAL_THEORY - allowed.get(path.name, set()), path.name


def test_5_numbers_have_intervals_from_four_launches_on(rows) -> None:
    for row in rows:
        if row["status"] != "ok":
            continue
        for name in INTERVALS:
            ends = row[f"{name}_lo"], row[f"{name}_hi"]
            assert all(ends) if int(row["launches_ok"]) >= 4 else not any(ends)
            if all(ends):
                assert float(ends[0]) <= float(row[name]) <= float(ends[1])


def test_7_what_cannot_be_told_apart_is_said(layout) -> None:
    text = layout.table("md").read_text()
    row = next(s for s in text.splitlines() if s.startswith("| [ddp.gloo.1x1]"))
    # The synthetic rate is 1 % below that of the base.
    assert re.search(r"0\.98\d* \[0\.9\d+, 1\.0\d*\] n\.s\.", row)


def test_8_more_than_a_median_is_told_of_steps(layout) -> None:
    with layout.table("csv", "diagnostics").open(newline="") as file:
        told = {(row["table"], row["column"]) for row in csv.DictReader(file)}
    assert {("Launches", "step (ms)"), ("Launches", "p95 (ms)")} <= told
    assert ("Scatter", "within (%)") in told


def test_9_plan_and_record_have_every_factor(layout) -> None:
    factors = {field.name for field in dataclasses.fields(Cell)}
    for cell in read_json(layout.plan)["cells"]:
        assert cell["cell"].keys() == factors
    (record, *_) = sorted(layout.records.glob("*/*/*/record.json"))
    assert read_json(record)["cell"].keys() == factors


def test_10_the_table_says_how_it_was_measured(layout) -> None:
    text = layout.table("html").read_text()
    for words in (
        "slowest rank",
        "timed window",
        "means over the launches",
        "weak scaling",
        "Warm-up",
    ):
        assert words in text, words
