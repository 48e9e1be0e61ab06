"""The preview of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from factories import make_record, make_site, read_plan_of
from rankbench.launch.job.claim import make_request
from rankbench.plan import read_plan
from rankbench.project import preview as preview_module
from rankbench.project.jobs import mean_of_cell
from rankbench.project.preview import Preview
from rankbench.project.run import Pending, Run
from rankbench.record import NOT_MEASURED, Layout, write_json
from unit.synthetic import make_cell, plan_cell, write_launches, write_plan

pytestmark = pytest.mark.unit

TEXT = """
name: x
strategy: [single, ddp]
backend: [gloo, mpi]
topology: [1x1, 1x2]
"""
CELLS = (("single", "1x1"), ("ddp", "1x2"), ("fsdp", "1x2"))
SINGLE = "single.none.1x2.convnet.digits"
ONE, TWO = "ddp.gloo.1x1.convnet.digits", "ddp.gloo.1x2.convnet.digits"


def preview_of(
    folder: Path,
    text: str,
    pending: dict[str, int] | int,
    seconds: dict[str, float] | None = None,
    beside: int = 0,
    **site: object,
) -> Preview:
    """Of cells that lack so many launches, and of earlier launches of so many seconds.

    Args:
        pending: by cell; a number for all that can run.
    """
    plan = read_plan_of(folder, text + "time_limit: 360\n", make_site(**site))
    layout = Layout(folder / "results")
    for cell, each in (seconds or {}).items():
        record = make_record(seconds={"launch": each})
        write_json(layout.launch(cell, 1, 1) / "record.json", record)
    if isinstance(pending, int):
        pending = {cell.id: pending for cell in plan.feasible}
    run = Run(plan, layout, list(plan.cells.values()))
    run.pending = {
        name: Pending(left, NOT_MEASURED, beside=beside, mean=mean_of_cell(run, name))
        for name, left in pending.items()
    }
    return Preview(run)


def test_counts_and_device_hours(tmp_path):
    preview = preview_of(tmp_path, TEXT, {SINGLE: 5, TWO: 10})
    lines = preview.lines()
    assert lines[0] == "6 cells: 2 to measure, 2 measured, 2 that cannot run here"
    assert lines[1].startswith("15 launches, 25 processes: time not known")
    # Each launch takes two devices for 0.1 h.
    assert preview.facts()["device_hours_at_most"] == 3
    assert preview.facts()["device_hours"] is None
    assert f"  {SINGLE}  5 launches of 1 rank" in lines
    assert f"  {TWO}  10 launches of 2 ranks" in lines
    (refused,) = lines[lines.index("cannot run here:") + 1 :]
    assert refused.startswith("  ddp.mpi.1x1.convnet.digits and 1 more\n")
    assert "has no MPI" in refused


@pytest.mark.parametrize(
    ("pending", "seconds", "never"),
    [
        ({ONE: 6, TWO: 6}, {ONE: 30.0, TWO: 30.0}, 0),
        ({ONE: 6, TWO: 6}, {TWO: 30.0}, 1),
        # Those of a cell that is complete tell as well.
        ({ONE: 6, TWO: 6}, {SINGLE: 30.0}, 2),
    ],
)
def test_earlier_launches_give_an_estimate(tmp_path, pending, seconds, never):
    # 12 launches of 30 s, half of them on 2 devices.
    said = "12 launches, 18 processes: about 6 min, 0.15 device-hours, by earlier"
    line = preview_of(tmp_path, TEXT, pending, seconds).lines()[1]
    assert line.startswith(said)
    assert (f"never launched: {never}," in line) == bool(never)


def test_nothing_to_do(tmp_path):
    lines = preview_of(tmp_path, "name: x\nstrategy: single\n", {}).lines()
    assert lines == ["1 cell: 0 to measure, 1 measured, 0 that cannot run here"]


def test_marks_and_launches_that_are_not_measured(tmp_path):
    text = "name: x\nstrategy: ddp\ntopology: 1x3\noversubscribe: true\n"
    lines = preview_of(tmp_path, text, 3, beside=1).lines()
    assert lines[1].startswith("3 launches, 1 more for gates or profiles, 12 processes")
    assert any(line.endswith("3 ranks  [oversubscribed]") for line in lines)


def test_long_lists_are_summed_up(tmp_path, monkeypatch):
    monkeypatch.setattr(preview_module, "LISTED", 3)
    text = "name: x\nstrategy: ddp\nbackend: [gloo, mpi]\nseed: [0, 1, 2, 3, 4]\n"
    lines = preview_of(tmp_path, text, 6).lines()
    listed = lines[lines.index("to measure:") + 1 : lines.index("cannot run here:")]
    assert len(listed) == 4
    assert listed[-1] == "  ... and 2 more"
    (grouped,) = lines[lines.index("cannot run here:") + 1 :]
    assert " and 4 more\n      this torch" in grouped


def test_jobs_and_the_longest_of_them(tmp_path):
    site = {"scheduler": "slurm", "nodes": 2}
    text = "name: x\nstrategy: ddp\ntopology: [1x1, 2x1]\ngate: false\n"
    preview = preview_of(tmp_path, text, 4, **site)
    preview.images = {"gloo-cpu": "changed: gloo.def"}
    lines = preview.lines()
    assert lines[2].startswith("2 jobs; the longest may take 27 minutes on ")
    at = lines.index("images to make:")
    assert lines[at + 1] == "  gloo-cpu  changed: gloo.def"


def test_next_of_the_answer_and_the_preview_agree_on_the_time(tmp_path, cli):
    """One cell is complete, one is interrupted, one was never launched."""
    planned = [plan_cell(make_cell(*one)) for one in CELLS]
    layout = write_plan(tmp_path / "results", planned, launches=6)
    for cell, count, each in ((planned[0], 6, 40.0), (planned[1], 4, 70.0)):
        seconds = {"launch": each}
        make_request(layout, cell["id"], launches=6, cell_hash=cell["hash"])
        write_launches(layout, cell, count=count, wanted=6, seconds=seconds)
        if count == 6:
            facts = {"launches": 6, "launches_ok": 6, "cell_hash": cell["hash"]}
            path = layout.summary(cell["id"], 1)
            write_json(path, {**facts, "image": None, "enough": None})
    plan = read_plan(layout.plan)
    plan.experiment.update(gate=True, profile=False, budget=None, order="rounds")
    plan.experiment["allocation"] = "cell"
    plan.site.update(max_job_minutes=None, software="native")
    preview = Preview(Run(plan, layout, list(plan.cells.values())))
    lines = preview.lines()
    assert list(preview.pending.values()) == [2, 6], preview.lacks
    # Two launches of 70 s, and six of the mean of 40 and 70 s.
    assert "8 launches" in lines[1]
    assert "about 8 min, " in lines[1]
    assert "about 8 min" in cli("answer", layout.root, status=3).out
