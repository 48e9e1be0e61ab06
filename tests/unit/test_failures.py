"""Cells without image or data: every output shows the cause."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from factories import read_plan_of
from rankbench.failures import (
    DATA,
    IMAGE,
    PLAN_VARIABLE,
    Need,
    explain_failures,
    note_attempt,
)
from rankbench.launch.images import __main__ as images
from rankbench.launch.job.claim import make_request
from rankbench.project.status import find_state
from rankbench.rank.data.prepare import main as prepare
from rankbench.record import Layout
from rankbench.results.bundle.signatures import write_sums
from rankbench.results.bundle.verify import verify_bundle
from rankbench.results.bundle.write import write_bundle
from rankbench.results.numbers.result_set import read
from unit.synthetic import make_cell, plan_cell, write_launches, write_plan

pytestmark = pytest.mark.unit

GLOO, DIGITS = Need(IMAGE, "gloo-cpu"), Need(DATA, "digits")
SAID = (
    "image gloo-cpu could not be built: fetch failed after 2 s: no such wheel; "
    "log: logs/images/gloo-cpu.log"
)
IMAGES = {"gloo-cpu": {"sidecar": "gone.json", "sha256": None, "recipe": "r"}}


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    """A run of three cells, one of which runs in an image; one is measured."""
    ddp = plan_cell(make_cell("ddp", "1x2")) | {"image": "gloo-cpu"}
    cells = [plan_cell(make_cell("single")), ddp, plan_cell(make_cell("ddp", "1x1"))]
    layout = write_plan(tmp_path / "results", cells, images=IMAGES)
    write_launches(layout, cells[0])
    monkeypatch.setenv(PLAN_VARIABLE, str(layout.plan))
    return layout


def fail(wanted: Need = GLOO) -> None:
    reason = "fetch failed after 2 s:\n  no such wheel"
    note_attempt(wanted, reason, f"logs/images/{wanted.name}.log")


def reasons(layout: Layout) -> list[str | None]:
    return [row.reason for row in read(layout).rows]


def test_a_row_says_why_its_image_is_not_there(layout):
    assert reasons(layout) == [None, *["not measured yet"] * 2]
    fail()
    assert reasons(layout) == [None, SAID, "not measured yet"]
    note_attempt(GLOO, None, "logs/images/gloo-cpu.log")
    assert reasons(layout) == [None, *["not measured yet"] * 2]


def test_a_row_says_why_its_data_are_not_there(layout):
    fail()
    note_attempt(DIGITS, "no such file", "logs/prepare/digits.log")
    data = "data digits could not be prepared: no such file; log: "
    data += "logs/prepare/digits.log"
    assert reasons(layout) == [None, f"{SAID}; {data}", data]


def test_without_a_run_nothing_is_written(layout, monkeypatch):
    monkeypatch.delenv(PLAN_VARIABLE)
    fail()
    note_attempt(GLOO, None, "logs/images/gloo-cpu.log")
    assert not (layout.work / "needs").exists()


def test_the_status_says_it_before_and_after_it_was_asked_for(tmp_path, monkeypatch):
    plan = read_plan_of(tmp_path, "name: x\nstrategy: single\ntopology: 1x1")
    (cell,) = plan.cells.values()
    layout = Layout(tmp_path / "results")
    monkeypatch.setenv(PLAN_VARIABLE, str(layout.plan))
    note_attempt(DIGITS, "gone", "x.log")
    said = "data digits could not be prepared: gone; log: x.log"
    assert find_state(plan, layout, cell).reason == said
    make_request(layout, cell.id, launches=2, cell_hash=cell.hash)
    assert find_state(plan, layout, cell).reason == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is damaged"),
        ("[]", "is damaged: not a JSON object"),
        ('{"schema": 2}', "has failure schema 2, this rankbench reads 1"),
        ('{"schema": 1, "reason": 3, "log": ""}', "expected the texts reason and log"),
    ],
)
def test_a_damaged_file_is_named(layout, text, said, cli):
    fail()
    GLOO.file(layout).write_text(text)
    error = cli("table", layout.root, status=2).err
    assert "needs/image.gloo-cpu.json" in error
    assert said in error


def test_names_that_lead_elsewhere_are_not_followed(layout):
    wanted = Need(DATA, "/../../../plan")
    (layout.work / "needs/data.").mkdir(parents=True)
    assert wanted.file(layout).is_file()
    assert explain_failures(layout, [wanted]) is None


# --- who writes it --------------------------------------------------------------------


def test_an_image_that_cannot_be_built(layout, tmp_path, monkeypatch):
    log = tmp_path / "gloo.log"
    fails = True

    def make(image: Any, *_: Any, **__: Any) -> None:
        if fails:
            said = "fetch failed after 2 s:\n  no such wheel"
            raise ValueError(f"image {image.name}: {said}\n  log: {log}")

    monkeypatch.setattr(images, "make_image", make)
    settings = json.dumps({"image_dir": str(tmp_path)})
    build = ["images", "gloo-cpu", "--settings", settings]
    monkeypatch.setattr(sys, "argv", [*build, "--log", str(log)])
    monkeypatch.chdir(Path(__file__).resolve().parents[2])
    # In a run, the jobs of cells read why; by hand, the exit status says it.
    assert images.main() == 0
    assert reasons(layout)[1] == SAID.replace("logs/images/gloo-cpu.log", str(log))
    fails = False
    assert images.main() == 0
    assert explain_failures(layout, [GLOO]) is None
    fails = True
    monkeypatch.delenv(PLAN_VARIABLE)
    assert images.main() == 1


def test_data_that_cannot_be_prepared(layout, tmp_path, monkeypatch):
    (tmp_path / "raw").write_text("nothing can be downloaded into a file")
    told = ["--root", str(tmp_path), "--log", "logs/prepare/mnist.log"]
    assert prepare(["mnist", *told]) == 0
    said = explain_failures(layout, [Need(DATA, "mnist")])
    assert said is not None
    assert said.startswith("data mnist could not be prepared: mnist cannot be prepared")
    assert said.endswith("; log: logs/prepare/mnist.log")
    with monkeypatch.context() as by_hand:
        by_hand.delenv(PLAN_VARIABLE)
        assert prepare(["mnist", *told]) == 2
    (tmp_path / "raw").unlink()
    assert prepare(["digits", *told]) == 0
    assert explain_failures(layout, [DIGITS]) is None


# --- in a bundle ----------------------------------------------------------------------


def test_a_bundle_has_it_and_verifies(layout, tmp_path):
    fail()
    write_bundle(layout, tmp_path / "bundle", anonymise=True)
    assert verify_bundle(tmp_path / "bundle").findings == []
    assert (
        "fetch failed after 2 s: no such wheel"
        in (tmp_path / "bundle/table.csv").read_text()
    )
    (tmp_path / "bundle/work/needs/image.gloo-cpu.json").unlink()
    write_sums(tmp_path / "bundle")
    places = [finding.where for finding in verify_bundle(tmp_path / "bundle").findings]
    assert "row 3 of ddp.gloo.1x2.convnet.digits, column reason" in places
