"""The answer: its choices, its ten lines, and that they are what answer.json holds."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from factories import make_surroundings
from rankbench.cell import Cell
from rankbench.cli import read_arguments
from rankbench.record import Layout
from rankbench.results.advice.answer import Workload, describe, find_answer
from rankbench.results.advice.choice import EQUAL, FEW, LESS, UNTOLD, Rival, choose
from rankbench.results.elements.text import replace_ids, shorten
from rankbench.results.numbers.result_set import read
from rankbench.results.numbers.statistics import MIN_LAUNCHES, Fit
from rankbench.results.read.records import check
from rankbench.results.sections.answer import as_json, divide, in_brief, to_lines
from rankbench.schema import load_yaml
from unit.synthetic import (
    edited,
    make_cell,
    plan_cell,
    plan_one,
    write_example,
    write_launch,
    write_plan,
    write_tables,
)

pytestmark = pytest.mark.unit


# --- choosing -------------------------------------------------------------------------


def choose_of(margin: float, **cells: Sequence[float]) -> tuple[str, dict[str, Rival]]:
    """Choose among cells that were launched in the same rounds."""
    fit = Fit({name: list(enumerate(own)) for name, own in cells.items()})
    best, rivals = choose(fit, dict.fromkeys(cells, 1.0), margin)
    return best, {rival.cell: rival for rival in rivals}


def test_rivals_are_slower_equal_or_cannot_be_told_apart():
    rounds = np.linspace(90, 110, 8)
    near = 0.998 * rounds * (1 + 0.004 * np.array([1, -1] * 4))
    far = 0.995 * rounds * (1 + 0.05 * np.array([1, -1] * 4))
    best, rivals = choose_of(0.03, a=rounds, near=near, far=far, b=0.8 * rounds)
    assert best == "a"
    verdicts = {name: rival.verdict for name, rival in rivals.items()}
    assert verdicts == {"near": EQUAL, "far": UNTOLD, "b": LESS}
    assert rivals["b"].ratio.value == pytest.approx(0.8)
    assert rivals["b"].launches is None
    assert 8 < rivals["far"].launches <= 200
    # A factor of each row counts.
    fit = Fit({"1": list(enumerate(rounds)), "2": list(enumerate(1.5 * rounds))})
    best, (rival,) = choose(fit, {"1": 1.0, "2": 0.5}, 0.03)
    assert (best, rival.ratio.value) == ("1", pytest.approx(0.75))
    _, rivals = choose_of(0.03, a=[100, 101, 99], b=[50, 51, 49])
    assert (rivals["b"].verdict, rivals["b"].launches) == (FEW, MIN_LAUNCHES)


@pytest.mark.parametrize("launches", [6, 20])
def test_a_row_that_is_as_good_is_seldom_called_less(launches):
    """All rows are the same; machines drift, and some launches are much slower."""
    random = np.random.default_rng(launches)
    wrong, experiments = 0, 300
    for _ in range(experiments):
        rates = (
            100
            * np.linspace(1, 1.1, launches)
            * random.lognormal(0, 0.03, (5, launches))
        )
        rates *= 1 - 0.2 * (random.random((5, launches)) < 0.1)
        _, rivals = choose_of(0.03, **{str(i): row for i, row in enumerate(rates)})
        wrong += any(rival.verdict == LESS for rival in rivals.values())
    # Five percent, and three standard errors of 300 experiments.
    assert wrong / experiments <= 0.05 + 3 * (0.05 * 0.95 / experiments) ** 0.5


# --- the ten lines --------------------------------------------------------------------

BF16, FAST = {"precision": "bf16"}, {"precision": "bf16", "compile": True}
GPU = {"device": "cuda"}
SCRIPT = {
    "script": {"args": "", "samples_per_step": "64"},
    "own_strategy": {"file": "train.py", "digest": "ab" * 32},
}


class Row(NamedTuple):
    """A cell, its samples/s, and members of its records."""

    cell: Cell
    rate: float
    changes: dict[str, Any] = {}


def cell(strategy: str, topology: str = "1x1", **changes: Any) -> Cell:
    over = "nccl" if changes.get("device") == "cuda" else "gloo"
    backend = "none" if strategy == "single" else over
    return make_cell(strategy, topology, **{"backend": backend, **changes})


def write(
    root: Path,
    rows: Sequence[Row],
    *,
    launches: int = 8,
    done: int = 0,
    scatter: float = 0.004,
) -> Layout:
    """Results of rows that took turns."""
    random = np.random.default_rng(5)
    planned = [plan_cell(row.cell, suffix=f".{n}") for n, row in enumerate(rows)]
    layout = write_plan(root, planned, name="bench", launches=launches)
    with edited(layout.plan) as plan:
        plan["experiment"] |= {"file": "bench.yaml", "site": "my profile"}
    layout.experiment.write_text("name: bench\nblocks:\n")
    usual = {"wanted": launches, "seconds": {"launch": 6.0}}
    usual |= {"surroundings": [make_surroundings()]}
    for one, row in zip(planned, rows, strict=True):
        for number in range(1, (done or launches) + 1):
            turn = {"round": {"seed": 1, "number": number, "position": 1}}
            rate = row.rate * random.lognormal(0, scatter)
            changes = {**usual, **turn, **row.changes}
            write_launch(layout, one, number, rate=rate, **changes)
    return layout


def say(layout: Layout) -> tuple[list[Workload], dict[str, str]]:
    """The findings, and what is said by term, in one line each."""
    answer = find_answer(read(layout))
    check(json.loads(json.dumps(as_json(answer))), "answer", layout.answer("json"))
    notes = in_brief(answer)
    lines = to_lines(notes)
    assert len(lines) <= 10
    assert max(map(len, lines)) <= 100
    for note in notes:
        if note.term in ("NEXT", "MORE"):
            check_command(note.text)
    return [*answer.workloads], {n.term: " ".join(n.text.split()) for n in notes}


def check_command(text: str) -> None:
    """What is printed is understood when it is pasted."""
    _, found, words = text.replace("\\\n", "").rpartition("rankbench ")
    assert found
    read_arguments(shlex.split(words, comments=True))


SINGLE, SINGLE2, DDP = (
    Row(cell("single"), 800),
    Row(cell("single", "1x2"), 1200),
    Row(cell("ddp", "1x2"), 1500),
)
ALONE = {"shape": plan_cell("single")["shape"]}
BUSY = {"surroundings": [make_surroundings(foreign=0.41)]}

OTHER = {"host": "n2", "cpu": "Other", "cores": 2, "gpus": [], "memory_gib": 8.0}
OTHER |= {"kernel": "6"}

# Case -> its rows; cases/answers.yaml has what its terms say.
CASES: dict[str, list[Row]] = {
    "the quickstart": [SINGLE, SINGLE2, DDP, Row(cell("fsdp", "1x2"), 900)],
    "all settings compete": [
        *(SINGLE, DDP, Row(cell("ddp", "1x2", **BF16), 2500)),
        Row(cell("ddp", "1x2", **FAST), 2900),
        Row(cell("single", **BF16, batch_size=128), 1100),
    ],
    "the best of the base's arithmetic and batch": [
        *(SINGLE, SINGLE2._replace(changes=ALONE)),
        Row(cell("ddp", "1x2", **BF16), 2500),
    ],
    "no rival with all cores": [SINGLE, DDP],
    "no ddp on GPUs": [
        Row(cell("single", **GPU), 800),
        Row(cell("fsdp", "1x2", **GPU), 1500),
    ],
    "three sizes": [
        *(SINGLE, DDP, Row(cell("ddp", "1x4"), 2400), Row(cell("ddp", "2x4"), 2500))
    ],
    "a script": [
        Row(cell("train", backend="gloo", **SCRIPT), 800),
        Row(cell("train", "1x2", backend="gloo", **SCRIPT), 1500),
    ],
    "as fast": [SINGLE, Row(cell("single", "1x2"), 1503), DDP],
    "the base is the best": [SINGLE, Row(cell("ddp", "1x2"), 700)],
    "disturbed": [SINGLE, DDP._replace(changes=BUSY)],
    "one row": [SINGLE],
    "a part of a device": [SINGLE, DDP._replace(changes={"marks": ["functional"]})],
    "another machine": [SINGLE._replace(changes={"hosts": [OTHER]}), DDP],
    "tokens": [
        row._replace(cell=replace(row.cell, context=8)) for row in (SINGLE, DDP)
    ],
}
SAID = load_yaml(Path(__file__).parent / "cases/answers.yaml")


@pytest.mark.parametrize("case", CASES)
def test_ten_lines(tmp_path, case):
    _, said = say(write(tmp_path, CASES[case]))
    for term, words in SAID[case].items():
        if words is None:
            assert term not in said
        else:
            assert re.fullmatch(words, said[term]), said[term]


def test_names_are_words():
    two = {"options": {"bucket_mb": 1}}
    names = {
        "1 core": cell("single"),
        "one process, 2 cores": cell("single", "1x2"),
        "1 GPU": cell("single", **GPU),
        "ddp over nccl on 2 hosts x 4 GPUs": cell("ddp", "2x4", **GPU),
        "ddp over gloo on 2 hosts x 1 core": cell("ddp", "2x1", **two),
        "ddp over gloo on 2 devices of 4 cores": cell("ddp", "1x2", cores_per_device=4),
        "1 device of 4 cores": cell("single", cores_per_device=4),
        "train.py on 1 core": cell("train", **SCRIPT),
        "train.py over gloo on 2 cores": cell("train", "1x2", **SCRIPT),
    }
    assert [describe(one) for one in names.values()] == [*names]


def test_settings_that_make_no_difference_are_said(tmp_path):
    rows = [Row(cell("ddp", "1x2", options={"bucket_mb": n}), 1500) for n in (1, 25)]
    layout = write(tmp_path, [SINGLE, SINGLE2, *rows])
    for path in layout.records.glob("ddp*/1/*/record.json"):
        with edited(path) as record:
            buckets = [{"bytes": 400, "ready_s": 0.1}]
            record["ranks"][0]["details"] = {"buckets": buckets}
    said = " ".join(note.text for note in divide(find_answer(read(layout)))[1])
    assert "bucket_mb 1 and 25 make one bucket here" in said


def test_the_next_launches_and_their_command(tmp_path, cli):
    rows = [SINGLE._replace(rate=780), SINGLE2._replace(rate=800)]
    layout = write(tmp_path, [*rows, DDP._replace(rate=810)], scatter=0.02)
    (facts,), said = say(layout)
    (plan, *_) = facts.next
    assert plan.settles == "fastest"
    assert re.fullmatch(r"\d+ more .*, about \d+ s: .* --next fastest", said["NEXT"])
    # By one device or two, launches of 6 s.
    seconds = sum(6 * one["more"] for one in plan.cells)
    assert plan.seconds == pytest.approx(seconds)
    assert plan.device_hours == pytest.approx(2 * seconds / 3600, rel=1e-3)
    command = ["answer", str(layout.root), "--next"]
    printed = " ".join(cli(*command, status=3).out.split())
    assert "to tell which is the fastest" in printed
    (found, *_) = json.loads(cli(*command, "--json", status=3).out)
    assert found["cells"] == plan.cells


def test_an_interrupted_run_is_shown_as_partial(tmp_path):
    layout = write(tmp_path, [SINGLE, DDP], done=3)
    _, said = say(layout)
    assert "is not complete (6 of 16 launches done); measured" in said["BEST"]
    assert "not judged: ddp over gloo on 2 cores 15" in said["BEST"]
    assert said["NEXT"] == (
        "rankbench run bench.yaml --site 'my profile' # continues, about 60 s"
    )
    (ddp,) = layout.records.glob("ddp*")
    shutil.rmtree(ddp)
    _, said = say(layout)
    assert "(3 of 16 launches done)" in said["BEST"]
    assert said["NEXT"].endswith(" # continues, about 78 s")


def test_numbers_of_before_a_change_are_shown_as_old(tmp_path):
    layout = write(tmp_path, [SINGLE, DDP])
    with edited(layout.plan) as plan:
        plan["cells"][1]["hash"] = "another"
    _, said = say(layout)
    assert re.search(
        r"1 row is old: .* ddp over gloo on 2 cores 1\d+ \(old\), 1 core \S+$",
        said["BEST"],
    )
    assert said["NEXT"].endswith(" # measures them, about 48 s")
    (row,) = [row for row in read(layout).rows if row.status == "stale"]
    assert re.search(r"changed; it had about 1\d+ samples/s$", row.reason)


def test_noise_names_no_winner(tmp_path):
    _, said = say(write(tmp_path, [SINGLE, SINGLE2, DDP], scatter=0.5))
    assert said["BEST"].startswith("cannot be told: launches scatter too much")
    assert "TRUST" not in said


@pytest.mark.parametrize("damaged", [True, False])
def test_without_numbers_the_cause_is_said_in_full(tmp_path, damaged):
    layout, planned = plan_one(tmp_path, "single")
    reason = f"it printed: usage: train.py [-h] {20 * '--long '}: no file named x"
    failed = {} if damaged else {"status": "crashed", "reason": reason}
    place = write_launch(layout, planned, wanted=1, **failed)
    if damaged:
        (place / "record.json").write_text("{")
    (facts, said) = say(layout)
    assert not facts
    assert damaged or said["WHY"].endswith("no file named x")
    assert said["NEXT"].startswith(f"rankbench {'run' if damaged else 'rerun'} ")


def test_workloads_are_told_apart(tmp_path):
    rows = [
        Row(cell(*key, optimizer=name), 800)
        for name in ("sgd", "adamw", "adam", "lion", "muon")
        for key in (("single",), ("ddp", "1x2"))
    ]
    layout = write(tmp_path, rows, launches=2)
    notes = in_brief(find_answer(read(layout)))
    assert len({note.text for note in notes if note.term == "WHAT"}) == 4
    assert notes[-1].text == "rankbench answer bench.yaml --site 'my profile' --details"


def test_what_weakens_rows_is_said_by_its_cause(tmp_path):
    layout = write(tmp_path, [SINGLE, SINGLE2, DDP])
    (path,) = layout.records.glob("ddp*/1/3/record.json")
    with edited(path) as record:
        record |= BUSY
    _, said = say(layout)
    assert said["TRUST"] == (
        "other programs took 41% of a rank's cores on node1, 1 of 8 launches "
        "disturbed: ddp over gloo on 2 cores"
    )


def test_losses_are_those_of_the_plot(tmp_path):
    from rankbench.results.sections.curves import SECTION

    layout = write(tmp_path, [SINGLE, DDP])
    _, said = say(layout)
    after, *losses = re.findall(
        r"loss after (\S+) s: (\S+), of 1 core ([\d.]+)", said["BUT"]
    )[0]
    frame = SECTION.frame(SECTION.make(read(layout)))
    for name, loss in zip(("ddp", "single"), losses, strict=True):
        curve = frame[frame["cell"].str.startswith(name)]
        expected = np.interp(float(after), curve["seconds"], curve["loss"])
        assert float(loss) == pytest.approx(expected, rel=0.03)


def test_a_control_is_no_candidate_and_what_it_costs_in_money(tmp_path):
    """ddp on one device costs nothing beside single, and nobody would choose it."""
    layout = write(tmp_path, [SINGLE, Row(cell("ddp"), 810), DDP])
    with edited(layout.plan) as plan:
        plan["site"]["device_hour_price"] = "2.50 EUR"
    (facts,), said = say(layout)
    assert len(facts.rows) == 2
    assert re.search(r"\(0.9\d+ EUR\) device-hours per million samples", said["COST"])
    assert "1 core 0.3" in said["COST"]


# --- where it is said -----------------------------------------------------------------


def test_every_document_says_what_answer_json_holds(tmp_path, cli):
    layout = write_example(tmp_path)
    write_tables(layout)
    answer = find_answer(read(layout))
    kept = json.loads(layout.answer("json").read_text())
    assert kept == json.loads(json.dumps(as_json(answer)))
    assert kept["lines"] == to_lines(in_brief(answer))
    names, _ = shorten([one.id for one in read(layout).rows])
    details = layout.answer("md").read_text().replace("*", "")
    for note in divide(answer)[1]:
        text = " ".join(note.text.split())
        assert f"- {note.term}: {replace_ids(text, names)}" in details
    page = " ".join(layout.report.read_text().split())
    for note in in_brief(answer):
        assert f"<dt>{note.term}</dt><dd>" in page
    assert cli("answer", tmp_path, status=3).out.splitlines() == kept["lines"]
    assert json.loads(cli("answer", tmp_path, "--json", status=3).out) == kept


def test_command(tmp_path, cli):
    results = str(write(tmp_path, [SINGLE, SINGLE2, DDP]).root)
    assert "SCALES  ddp gloo: eff" in cli("answer", results, "--details").out
    assert "nothing is open" in cli("answer", results, "--next", "fastest").out
    for option, value in (("--margin", "3"), ("--margin", "0"), ("--efficiency", "1")):
        said = cli("answer", results, option, value, status=2).err
        assert f"{option}: expected a share above 0 and below 1, " in said
