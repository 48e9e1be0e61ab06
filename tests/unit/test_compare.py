"""`rankbench compare`: verdicts, different environments, exit status, bad input."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pages import Words
from rankbench import cli
from unit.synthetic import (
    edited,
    make_cell,
    plan_cell,
    write_example,
    write_launch,
    write_launches,
    write_plan,
)

pytestmark = pytest.mark.unit

SINGLE = plan_cell(make_cell("single"))
DDP = plan_cell(make_cell("ddp", "1x2"))


def write_run(root: Path, rates: dict[str, float], *, count: int = 6, **changes: Any):
    """Results of the cells whose rate is given, of `count` launches each."""
    planned = [cell for cell in (SINGLE, DDP) if cell["id"] in rates]
    layout = write_plan(root, planned, launches=count)
    for cell in planned:
        rate = rates[cell["id"]]
        write_launches(layout, cell, rate=rate, count=count, wanted=count, **changes)
    return layout


@pytest.fixture
def pair(tmp_path):
    """Two runs; in the second one `ddp` is 10 % slower."""
    old, new = tmp_path / "old", tmp_path / "new"
    write_run(old, {SINGLE["id"]: 800, DDP["id"]: 1500})
    write_run(new, {SINGLE["id"]: 802, DDP["id"]: 1350})
    return old, new


def compare(capsys, *arguments: str | Path) -> tuple[int, str, str]:
    status = cli.main(["compare", *map(str, arguments)])
    said = capsys.readouterr()
    return status, said.out, said.err


def compare_json(capsys, *arguments: str | Path) -> tuple[int, dict[str, Any]]:
    status, out, _ = compare(capsys, *arguments, "--json")
    return status, json.loads(out)


def verdicts(found: dict[str, Any]) -> dict[str, str]:
    return {cell["cell"]: cell["verdict"] for cell in found["cells"]}


def test_a_slower_cell_is_worse(pair, capsys):
    status, found = compare_json(capsys, *pair)
    assert status == 1
    assert verdicts(found) == {SINGLE["id"]: "cannot tell", DDP["id"]: "worse"}
    _, worse = found["cells"]
    assert worse["ratio_lo"] < 0.9 < worse["ratio_hi"] < 1
    assert len(worse["new"]["throughput"]) == 6


def test_the_other_way_round_it_is_better(pair, capsys):
    status, found = compare_json(capsys, *pair[::-1])
    assert status == 0
    assert verdicts(found) == {SINGLE["id"]: "cannot tell", DDP["id"]: "better"}


def test_text_says_the_same(pair, capsys):
    status, out, _ = compare(capsys, *pair)
    assert status == 1
    (line,) = (line for line in out.splitlines() if line.startswith(DDP["id"]))
    assert line.split()[1] == "worse"
    assert "1 worse; 1 cannot tell, at 95 % confidence" in out


def test_a_run_equals_itself(pair, capsys):
    status, found = compare_json(capsys, pair[0], pair[0])
    assert status == 0
    assert set(verdicts(found).values()) == {"equal"}
    assert found["differs"] == {}


@pytest.mark.parametrize(
    ("options", "verdict"),
    [((), "equal"), (("--margin", "0"), "worse"), (("--margin", "0.2"), "equal")],
)
def test_a_margin_of_3_percent_forgives(tmp_path, capsys, options, verdict):
    write_run(tmp_path / "old", {SINGLE["id"]: 800}, count=20)
    write_run(tmp_path / "new", {SINGLE["id"]: 788}, count=20)
    sides = tmp_path / "old", tmp_path / "new"
    status, found = compare_json(capsys, *sides, *options)
    assert status == (verdict == "worse")
    assert set(verdicts(found).values()) == {verdict}


def test_the_first_line_warns_of_runs_one_after_the_other(tmp_path, capsys):
    old, new = tmp_path / "old", tmp_path / "new"
    for side, day in ((old, "2026-01-01"), (new, "2026-01-02")):
        times = {"started": f"{day}T00:00:00+00:00", "ended": f"{day}T00:10:00+00:00"}
        write_run(side, {SINGLE["id"]: 800}, round=None, **times)
    _, out, _ = compare(capsys, old, new)
    assert out.startswith("warning: OLD before NEW, one after the other: the machine")
    _, out, _ = compare(capsys, new, old)
    assert out.startswith("warning: NEW before OLD, one after the other")
    baseline = tmp_path / "b.json"
    compare(capsys, old, "--save-baseline", baseline)
    _, out, _ = compare(capsys, baseline, new)
    assert out.startswith("warning: OLD before NEW")
    _, out, _ = compare(capsys, old, old)
    assert out.startswith("OLD  ")


def write_alternatives(root: Path, *, drift: float, rounds: bool) -> Path:
    """Two images in one experiment, of which the second is 5 % slower."""
    cells = [
        plan_cell(make_cell("ddp", "1x2", image=image), suffix=f".image={image}")
        for image in ("gloo", "mpi")
    ]
    layout = write_plan(root, cells, launches=8)
    for cell, rate in zip(cells, (1000, 950), strict=True):
        for number in range(1, 9):
            place = {"seed": 1, "number": number, "position": 1}
            changes = {"round": place if rounds else None}
            machine = 1 - drift * number
            write_launch(layout, cell, number, rate=rate * machine, wanted=8, **changes)
    return root


def test_two_images_of_one_experiment_are_compared_within_rounds(tmp_path, capsys):
    results = write_alternatives(tmp_path / "in", drift=0.03, rounds=True)
    status, out, _ = compare(capsys, results, "--between", "image=gloo,mpi")
    assert status == 1
    assert out.startswith("compared within rounds: launches of both sides took turns")
    (line,) = (s for s in out.splitlines() if "image=mpi  " in s and "worse" in s)
    assert "0.95 [0.95, 0.95]" in line
    status, found = compare_json(capsys, results, "--between", "image=mpi,gloo")
    assert status == 0
    assert list(verdicts(found).values()) == ["better"]
    # Without rounds, the drift of the machine hides the difference.
    results = write_alternatives(tmp_path / "out", drift=0.03, rounds=False)
    _, found = compare_json(capsys, results, "--between", "image=gloo,mpi")
    assert list(verdicts(found).values()) == ["cannot tell"]


def test_a_variable_is_compared_with_cells_that_do_not_set_it(tmp_path, capsys):
    cells = [
        plan_cell(make_cell("ddp", "1x2")),
        plan_cell(make_cell("ddp", "1x2", env={"A": "1"}), suffix=".A=1"),
    ]
    layout = write_plan(tmp_path, cells, launches=8)
    for cell, rate in zip(cells, (1000, 950), strict=True):
        write_launches(layout, cell, count=8, rate=rate, wanted=8)
    _, found = compare_json(capsys, tmp_path, "--between", "A=unset,1")
    assert verdicts(found) == {cells[1]["id"]: "worse"}
    status, _, err = compare(capsys, tmp_path, "--between", "A=unset,2")
    assert status == 2
    assert "no cell has A=2 (there are 1, unset)" in err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--between", "image"), "expected KEY=A,B, such as image=gloo,mpi"),
        (("--between", "image=a,a"), "expected KEY=A,B"),
        (
            ("--between", "image=gloo,ccl"),
            "no cell has image=ccl (there are gloo, mpi)",
        ),
        (("--between", "colour=a,b"), "no cell has colour=a"),
        (("results", "--between", "image=a,b"), "NEW and --between: give one of them"),
    ],
)
def test_a_key_that_parts_nothing_is_refused(tmp_path, capsys, arguments, complaint):
    results = write_alternatives(tmp_path / "in", drift=0.0, rounds=True)
    status, _, err = compare(capsys, results, *arguments)
    assert status == 2
    assert complaint in err


def test_few_launches_are_not_judged(tmp_path, capsys):
    for name in ("old", "new"):
        write_run(tmp_path / name, {SINGLE["id"]: 800}, count=3)
    status, out, err = compare(capsys, tmp_path / "old", tmp_path / "new")
    assert status == 2
    assert "too few launches" in out
    assert "no cell could be judged" in err


def test_a_cell_that_no_longer_runs_is_a_finding(tmp_path, capsys):
    write_run(tmp_path / "old", {SINGLE["id"]: 800, DDP["id"]: 1500})
    layout = write_plan(tmp_path / "new", [SINGLE, DDP])
    write_launches(layout, SINGLE)
    write_launch(layout, DDP, status="crashed", reason="rank 1 ended by SIGSEGV")
    arguments = tmp_path / "old", tmp_path / "new"
    status, out, _ = compare(capsys, *arguments)
    assert status == 1
    assert "lost" in out
    assert "rank 1 ended by SIGSEGV" in out
    status, found = compare_json(capsys, *arguments[::-1])
    assert status == 0
    assert verdicts(found)[DDP["id"]] == "gained"


def test_cells_of_one_side_are_listed(tmp_path, capsys):
    write_run(tmp_path / "old", {SINGLE["id"]: 800})
    write_run(tmp_path / "new", {SINGLE["id"]: 800, DDP["id"]: 1500})
    status, out, _ = compare(capsys, tmp_path / "old", tmp_path / "new")
    assert status == 0
    assert f"only in NEW: {DDP['id']}" in out


def test_a_cell_that_is_defined_otherwise_is_not_compared(tmp_path, capsys):
    write_run(tmp_path / "old", {SINGLE["id"]: 800})
    layout = write_plan(tmp_path / "new", [plan_cell(make_cell("single", seed=1))])
    write_launches(layout, plan_cell(make_cell("single", seed=1)), rate=400)
    status, out, err = compare(capsys, tmp_path / "old", tmp_path / "new")
    assert status == 2
    assert "changed" in out
    assert "no cell could be judged" in err


def test_what_differs_is_named_first(tmp_path, capsys):
    software = {"python": "3.11.7", "torch": "2.14.0", "cuda": None, "nccl": None}
    image = {"name": "gloo-cpu", "recipe": "r", "sha256": "ab" * 32}
    host = {"host": "node2", "cpu": "Another CPU", "cores": 2, "memory_gib": 23.4}
    host |= {"kernel": "6.1", "gpus": [{"name": "GPU", "memory_gib": 80.0}] * 2}
    write_run(tmp_path / "old", {SINGLE["id"]: 800})
    inside = SINGLE | {"image": "gloo-cpu"}
    layout = write_plan(tmp_path / "new", [inside], images={"gloo-cpu": image})
    code = {"rank": "cd" * 32}
    facts = {"software": software, "hosts": [host], "code": code, "image": image}
    write_launches(layout, inside, **facts)
    arguments = tmp_path / "old", tmp_path / "new"
    status, out, _ = compare(capsys, *arguments)
    assert status == 0
    assert out.index("2.14.0") < out.index(SINGLE["id"])
    _, found = compare_json(capsys, *arguments)
    assert found["differs"] == {
        "host": {"old": ["node1"], "new": ["node2"]},
        "cpu": {"old": ["Example CPU"], "new": ["Another CPU"]},
        "GPUs": {"old": ["none"], "new": ["2 x GPU 80.0"]},
        "torch": {"old": ["2.13.0"], "new": ["2.14.0"]},
        "image": {"old": ["none"], "new": ["gloo-cpu"]},
        "image sha256": {"old": ["none"], "new": ["ab" * 32]},
        "code of ranks": {"old": ["c0de" * 16], "new": ["cd" * 32]},
    }


def test_a_baseline_is_as_good_as_its_results(pair, tmp_path, capsys):
    baseline = tmp_path / "baseline.json"
    assert compare(capsys, pair[0], "--save-baseline", baseline)[0] == 0
    _, of_results = compare_json(capsys, *pair)
    shutil.rmtree(pair[0])
    status, of_baseline = compare_json(capsys, baseline, pair[1])
    assert status == 1
    assert of_baseline["cells"] == of_results["cells"]
    assert baseline.stat().st_size < 5000


def test_the_new_side_can_become_the_baseline(pair, tmp_path, capsys):
    baseline = tmp_path / "baseline.json"
    assert compare(capsys, *pair, "--save-baseline", baseline)[0] == 1
    assert compare(capsys, baseline, pair[1])[0] == 0


def test_rows_of_every_status_are_compared(tmp_path, capsys):
    write_example(tmp_path)
    status, found = compare_json(capsys, tmp_path, tmp_path)
    assert status == 0
    assert found["counts"]["equal"] == 4
    # It was measured alone.
    assert found["counts"]["cannot tell"] == 1
    assert found["counts"]["too few launches"] == 1
    assert found["counts"]["no number"] == 4


def test_many_cells_widen_the_brackets(tmp_path, capsys):
    widths = []
    for count in (1, 30):
        root = tmp_path / str(count)
        cells = [
            plan_cell(make_cell("single", seed=n), suffix=f".{n}") for n in range(count)
        ]
        layout = write_plan(root, cells)
        for cell in cells:
            write_launches(layout, cell)
        _, found = compare_json(capsys, root, root)
        widths.append(found["cells"][0]["ratio_hi"])
    assert widths[1] > widths[0] > 1


def test_a_machine_that_changed_meanwhile_is_named(tmp_path, capsys):
    write_run(tmp_path / "old", {SINGLE["id"]: 800})
    layout = write_plan(tmp_path / "new", [SINGLE])
    for launch in range(1, 7):
        write_launch(layout, SINGLE, launch, rate=800 - 5 * launch)
    arguments = tmp_path / "old", tmp_path / "new"
    _, out, _ = compare(capsys, *arguments)
    assert f"so the machine changed: {SINGLE['id']}" in out
    _, found = compare_json(capsys, arguments[0], arguments[0])
    assert found["drifting"] == []


def test_nothing_in_records_commands_the_terminal(tmp_path, capsys):
    software = {"python": "3", "torch": "\x1b[2J\x1b]0;owned\x07", "cuda": None}
    write_run(tmp_path / "old", {SINGLE["id"]: 800})
    write_run(tmp_path / "new", {SINGLE["id"]: 800}, software=software)
    _, out, _ = compare(capsys, tmp_path / "old", tmp_path / "new")
    assert "owned" in out
    assert "\x1b" not in out
    assert "\x07" not in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["missing", "missing"], "missing does not exist"),
        (["."], "compare with what"),
        ([".", "."], "has no plan.json"),
        (["file.txt", "file.txt"], "file.txt is no bundle"),
        (["file.json", "file.json"], "file.json has history schema"),
        (["broken.json", "broken.json"], "broken.json is damaged"),
        (["nan.json", "nan.json"], "nan.json is damaged"),
        (["old", "old", "--confidence", "95"], "confidence 95"),
        (["old", "old", "--margin", "3"], "margin 3"),
        (["old", "other"], "no cell in common"),
    ],
)
def test_bad_input_is_said_in_words(tmp_path, monkeypatch, capsys, arguments, says):
    monkeypatch.chdir(tmp_path)
    Path("file.txt").write_text("text")
    Path("file.json").write_text('{"plan": 1}')
    Path("broken.json").write_text('{"schema": 1, "cells": {"a": {}}}')
    write_run(Path("old"), {SINGLE["id"]: 800})
    compare(capsys, "old", "--save-baseline", "nan.json")
    with edited(Path("nan.json")) as stored:
        stored["cells"][SINGLE["id"]]["throughput"][0] = float("nan")
    write_run(Path("other"), {DDP["id"]: 800})
    status, _, err = compare(capsys, *arguments)
    assert status == 2
    assert says in err


def test_several_runs_are_one_table(pair, tmp_path, capsys):
    """Each is compared with the first one; another machine only stands beside it."""
    host = {"host": "node2", "cpu": "Another CPU", "cores": 2, "memory_gib": 23.4}
    rates = {SINGLE["id"]: 400, DDP["id"]: 900}
    write_run(tmp_path / "lab", rates, hosts=[{**host, "gpus": []}])
    names = [*map(str, pair), str(tmp_path / "lab")]
    assert cli.main(["table", *names, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["cell"], row["run"]) for row in rows] == [
        (cell["id"], name) for cell in (SINGLE, DDP) for name in names
    ]
    assert [row["verdict"] for row in rows] == [
        *(None, "cannot tell", "another machine"),
        *(None, "worse", "another machine"),
    ]
    assert [row["ratio"] is None for row in rows] == [True, False, True] * 2
    assert rows[4]["ratio_lo"] < 0.9 < rows[4]["ratio_hi"] < 1
    # The brackets of all runs hold together, so each is wider than that of two runs.
    assert rows[4]["ratio_lo"] < compare_json(capsys, *pair)[1]["cells"][1]["ratio_lo"]

    baseline, page = tmp_path / "base.json", tmp_path / "runs.html"
    compare(capsys, pair[0], "--save-baseline", baseline)
    assert cli.main(["table", *names, str(baseline), "--page", str(page)]) == 0
    out = capsys.readouterr().out
    assert f"cpu  {names[2]}: Another CPU" in out
    lines = out.splitlines()
    (line,) = (s for s in lines if DDP["id"] in s and names[1] in s)
    assert line.rstrip().endswith("worse")
    # The answer of each run, of which a baseline has none.
    used = [lines[lines.index(name) + 2].split(" on ")[0] for name in names]
    assert used == ["USE     ddp over gloo"] * 3
    assert str(baseline) not in lines
    # The page says the same; runs of the other machine have a panel of their own.
    words = Words(page.read_text()).text
    assert all(name in words for name in (*names, str(baseline), "worse"))
    assert "Slower: 1 other row." in words
    svg = (tmp_path / "plots/runs.svg").read_text()
    for machine in ("Example", "Another"):
        assert svg.count(f"<!-- 2 cores of {machine} CPU, 23.4 GiB -->") == 1
    assert svg.count("<!-- ddp.gloo.1x2 -->") == 4


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        (["old", "old"], "named twice"),
        (["old", "new", "--site", "x"], "--override and --site"),
        (["old", "nowhere"], "nowhere"),
        (["old", "--page", "x.html"], "--page: is of several results"),
    ],
)
def test_runs_that_make_no_table(pair, monkeypatch, capsys, more, complaint):
    monkeypatch.chdir(Path(pair[0]).parent)
    assert cli.main(["table", *more]) == 2
    assert complaint in capsys.readouterr().err


def test_a_disturbed_launch_is_in_no_number(tmp_path, capsys):
    """The number beside a ratio is that of its launches, as in the table."""
    for side, slow in (("old", 1.0), ("new", 0.4)):
        layout = write_plan(tmp_path / side, [SINGLE, DDP], launches=8)
        for number in range(1, 9):
            place = {"seed": 1, "number": number, "position": 1}
            rate = (800 + number) * (slow if number == 3 else 1)
            for cell, own in ((SINGLE, rate), (DDP, 1500 - number)):
                write_launch(layout, cell, number, rate=own, wanted=8, round=place)
    _, out, _ = compare(capsys, tmp_path / "old", tmp_path / "new")
    (line,) = (s for s in out.splitlines() if s.startswith(SINGLE["id"]))
    assert "804.5 samples/s (8)" in line
    assert "804.7 samples/s (7 of 8)" in line
