"""What the table says of cells that are alike, and of steps without a steady state."""

from __future__ import annotations

import numpy as np
import pytest

from unit.synthetic import (
    PHASES,
    make_cell,
    plan_cell,
    write_launch,
    write_launches,
    write_plan,
    write_tables,
)

pytestmark = pytest.mark.unit

SINGLE = plan_cell(make_cell("single"))
DDP = plan_cell(make_cell("ddp"))


@pytest.mark.parametrize(
    ("rate", "verdict"),
    [(800.0, "="), (812.0, "n.s."), (700.0, ""), (900.0, "")],
)
def test_what_is_equal_and_what_cannot_be_told_apart(tmp_path, rate, verdict):
    layout = write_plan(tmp_path, [SINGLE, DDP])
    for planned, own in ((SINGLE, 800), (DDP, rate)):
        write_launches(layout, planned, rate=own, count=13)
    write_tables(layout)
    text = layout.table("md").read_text()
    # The names omit the model and data that both cells share.
    row = next(s for s in text.splitlines() if s.startswith("| ddp "))
    found = [word for word in ("=", "n.s.") if f"] {word} |" in row]
    assert found == [verdict] * bool(verdict)
    explained = {
        "=": "equal: the bracket is within 3%",
        "n.s.": "the bracket includes 1",
    }
    assert [word for word, said in explained.items() if said in text] == found


def write_unsteady(layout, planned, launch):
    """Steps that take twice as long in the last quarter."""
    steps = np.full((100, len(PHASES)), 0.01)
    steps[75:] *= 2
    window = float(steps.sum())
    changes = {"steps": 100, "warmup": 0, "samples": 6400}
    directory = write_launch(layout, planned, launch, **changes)
    members = {"rank0/seconds": steps, "rank0/warmup": steps[:0]}
    np.savez(directory / "steps.npz", **members, **{"rank0/loss": np.ones(100)})
    path = directory / "record.json"
    text = path.read_text()
    assert '"window_s": 0.64' in text
    path.write_text(text.replace('"window_s": 0.64', f'"window_s": {window}'))


@pytest.mark.parametrize(("unsteady", "marked"), [(0, False), (1, True), (6, True)])
def test_no_steady_state_is_said(tmp_path, unsteady, marked):
    layout = write_plan(tmp_path, [SINGLE])
    for launch in range(1, 7):
        if launch <= unsteady:
            write_unsteady(layout, SINGLE, launch)
        else:
            write_launch(layout, SINGLE, launch)
    write_tables(layout)
    assert f"{6 - unsteady}/6" in layout.section("diagnostics").read_text()
    assert ("still changed their level" in layout.table("md").read_text()) == marked
    marks = layout.table("csv").read_text().splitlines()[1]
    assert ("no-steady-state" in marks) == marked
