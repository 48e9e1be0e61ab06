"""Tables by question: the shapes of the reports that are commonly written."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from rankbench.results.elements.text import Grid
from rankbench.results.numbers.result_set import read
from rankbench.results.sections import reports
from unit import synthetic

pytestmark = pytest.mark.unit

WITHIN, ACROSS = "Within one server", "Across servers"
METHODS, MEMORY = "Methods", "Memory of each rank"


def grids_of(root: Path, *topologies: str, **changes) -> dict[str, Grid]:
    alone = [phase for phase in synthetic.PHASES if phase != "communication"]
    single = synthetic.plan_cell(synthetic.make_cell("single"), phases=alone)
    ddp = [synthetic.plan_cell(synthetic.make_cell("ddp", t)) for t in topologies]
    layout = synthetic.write_plan(root, [single, *ddp])
    synthetic.write_launches(layout, single, rate=800, **changes)
    for number, planned in enumerate(ddp, start=2):
        synthetic.write_launches(layout, planned, rate=700 * number, **changes)
    synthetic.write_tables(layout)
    content = reports.make(read(layout))
    assert content is not None
    grids = {grid.title: grid for grid in reports.SECTION.grids(content)}
    written = pd.read_csv(layout.table("csv", "reports"))
    assert list(dict.fromkeys(written["table"])) == list(grids)
    return grids


def column(grid: Grid, heading: str) -> list[str]:
    place = list(grid.columns).index(heading)
    return [row[place].value for row in grid.rows]


def test_within_a_server_and_across(tmp_path: Path) -> None:
    grids = grids_of(tmp_path, "1x2", "2x1", "2x2")
    within, across = grids[WITHIN], grids[ACROSS]
    assert column(within, "devices per server") == ["1", "2"]
    assert column(within, "backend") == ["none", "gloo"]
    assert column(across, "servers") == ["1", "2"]
    # The digits of a table follow the interval; the CSV has four.
    assert column(across, "speedup") == ["1", "2.62"]
    written = pd.read_csv(tmp_path / "reports.csv").query("table == @ACROSS")
    speedups = written.query("column == 'speedup'")["value"].str.split().str[0]
    assert speedups.astype(float).tolist() == [1, pytest.approx(2100 / 800, rel=1e-3)]


def test_one_server_has_no_table_across(tmp_path: Path) -> None:
    assert ACROSS not in grids_of(tmp_path, "1x2")


def test_methods_want_an_accuracy(tmp_path: Path) -> None:
    assert column(grids_of(tmp_path / "a")[METHODS], "accuracy") == ["0.97"]
    assert METHODS not in grids_of(tmp_path / "b", accuracy=None)


def test_memory_of_each_rank(tmp_path: Path) -> None:
    memory = grids_of(tmp_path, "1x2", "2x8")[MEMORY]
    assert column(memory, "each (MiB)") == ["350", "350 / 351", "350 to 365"]
