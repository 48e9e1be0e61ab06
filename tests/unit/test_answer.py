"""The answer: its choices, what it cannot tell, and that its words are its values."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factories import make_surroundings
from rankbench.cli import main
from rankbench.record import Layout
from rankbench.results.advice.answer import find_answer
from rankbench.results.advice.choice import (
    EQUAL,
    FEW,
    LESS,
    UNTOLD,
    Facts,
    choose,
)
from rankbench.results.advice.words import in_brief, in_sentences
from rankbench.results.elements.names import replace_ids, shorten
from rankbench.results.numbers.fit import Fit
from rankbench.results.numbers.result_set import read
from rankbench.results.numbers.statistics import MIN_LAUNCHES
from unit.synthetic import (
    edited,
    make_cell,
    plan_cell,
    write_example,
    write_launch,
    write_launches,
    write_plan,
    write_tables,
)

pytestmark = pytest.mark.unit


# --- choosing -------------------------------------------------------------------------


def choose_of(margin: float, **cells: Sequence[float]) -> tuple[str, dict[str, Facts]]:
    """Choose among cells that were launched in the same rounds."""
    fit = Fit({name: list(enumerate(own)) for name, own in cells.items()})
    return choose(fit, dict.fromkeys(cells, 1.0), margin)


def test_a_clear_winner():
    rounds = np.linspace(90, 110, 8)
    best, rivals = choose_of(0.03, a=rounds, b=0.8 * rounds)
    assert best == "a"
    assert rivals["b"]["verdict"] == LESS
    assert rivals["b"]["ratio"]["value"] == pytest.approx(0.8)
    assert rivals["b"]["launches"] is None


def test_a_factor_of_each_row_counts():
    rounds = np.linspace(90, 110, 8)
    fit = Fit({"1": list(enumerate(rounds)), "2": list(enumerate(1.5 * rounds))})
    best, rivals = choose(fit, {"1": 1.0, "2": 0.5}, 0.03)
    assert best == "1"
    assert rivals["2"]["ratio"]["value"] == pytest.approx(0.75)


def test_equal_is_more_than_not_told_apart():
    rounds = np.linspace(90, 110, 8)
    near = 0.995 * rounds * (1 + 0.004 * np.array([1, -1] * 4))
    far = 0.995 * rounds * (1 + 0.05 * np.array([1, -1] * 4))
    _, rivals = choose_of(0.03, a=rounds, near=near, far=far)
    assert rivals["near"]["verdict"] == EQUAL
    assert rivals["far"]["verdict"] == UNTOLD
    assert rivals["far"]["launches"] is not None
    assert 8 < rivals["far"]["launches"] <= 200


def test_too_few_launches_say_nothing():
    _, rivals = choose_of(0.03, a=[100, 101, 99], b=[50, 51, 49])
    assert (rivals["b"]["verdict"], rivals["b"]["launches"]) == (FEW, MIN_LAUNCHES)


def test_six_rounds_suffice_for_many_rivals_that_are_far_behind():
    rounds = np.array([97, 99, 100, 101, 102, 104.0])
    others = {f"b{i}": 0.5 * rounds + i / 10 for i in range(10)}
    _, rivals = choose_of(0.03, a=rounds, **others)
    assert {rival["verdict"] for rival in rivals.values()} == {LESS}


@pytest.mark.parametrize("launches", [6, 8, 20])
def test_a_row_that_is_as_good_is_seldom_called_less(launches):
    """All rows are the same; machines drift, and some launches are much slower."""
    random = np.random.default_rng(launches)
    wrong, experiments = 0, 300
    for _ in range(experiments):
        drift = np.linspace(1, 1.1, launches)
        scatter = random.lognormal(0, 0.03, (5, launches))
        slow = 1 - 0.2 * (random.random((5, launches)) < 0.1)
        rates = 100 * drift * scatter * slow
        _, rivals = choose_of(0.03, **{str(i): row for i, row in enumerate(rates)})
        wrong += any(rival["verdict"] == LESS for rival in rivals.values())
    # Five percent, and three standard errors of 300 experiments.
    assert wrong / experiments <= 0.05 + 3 * (0.05 * 0.95 / experiments) ** 0.5


def test_planned_launches_settle_it_mostly():
    random = np.random.default_rng(1)
    settled = 0
    for _ in range(100):
        a, b = (random.lognormal(np.log(rate), 0.03, 200) for rate in (100, 96))
        fit = Fit({"a": list(enumerate(a[:12])), "b": list(enumerate(b[:12]))})
        count = fit.ratio("a", "b").launches_for(0.04, 0.95)
        assert count is not None
        best, rivals = choose_of(0.001, a=a[:count], b=b[:count])
        settled += best == "a" and rivals["b"]["verdict"] == LESS
    assert settled >= 60


# --- the answer of a result directory -------------------------------------------------


def write_rows(root: Path, rates: dict[tuple[str, str], float], **plan: Any) -> Layout:
    """Rows by strategy and topology, of six launches each."""
    cells = {key: plan_cell(make_cell(*key)) for key in rates}
    layout = write_plan(root, list(cells.values()), **plan)
    for key, rate in rates.items():
        write_launches(layout, cells[key], rate=rate)
    return layout


def answer_of(layout: Layout, **settings: Any) -> dict[str, Any]:
    (workload,) = find_answer(read(layout), **settings)["workloads"]
    return workload


SINGLE, DDP1, DDP2 = (
    "single.none.1x1.convnet.digits",
    "ddp.gloo.1x1.convnet.digits",
    "ddp.gloo.1x2.convnet.digits",
)


def test_fastest_and_cheapest_may_differ(tmp_path):
    layout = write_rows(tmp_path, {("single", "1x1"): 800, ("ddp", "1x2"): 1200})
    facts = answer_of(layout)
    assert (facts["fastest"]["cell"], facts["cheapest"]["cell"]) == (DDP2, SINGLE)
    assert facts["fastest"]["less"] == facts["cheapest"]["less"] == 1
    # An epoch of 4 steps of 64 samples by one device.
    hours = facts["cheapest"]["device_hours_per_epoch"]["value"]
    assert hours == pytest.approx(4 * 64 / 800 / 3600, rel=0.02)
    assert facts["cheapest"]["samples_per_epoch"] == 256


def test_the_simpler_of_two_equal_rows_is_recommended(tmp_path):
    layout = write_rows(tmp_path, {("single", "1x1"): 800, ("ddp", "1x2"): 808})
    facts = answer_of(layout, margin=0.1)
    assert facts["fastest"]["cell"] == DDP2
    assert facts["fastest"]["recommended"] == SINGLE
    (rival,) = facts["fastest"]["rivals"]
    assert rival["verdict"] == "equal"
    notes = in_sentences({**find_answer(read(layout)), "workloads": [facts]})
    assert f"Use {SINGLE}: it is as fast within" in notes[0].text
    # Rows that cannot be told apart are not equal.
    facts = answer_of(layout, margin=0.001)
    assert facts["fastest"]["recommended"] == DDP2


def test_how_far_it_scales(tmp_path):
    rates = {"1x1": 800, "1x2": 1500, "1x4": 2240, "1x8": 2500}
    layout = write_rows(
        tmp_path,
        {("single", "1x1"): 800, **{("ddp", t): rate for t, rate in rates.items()}},
    )
    (series,) = answer_of(layout)["scaling"]
    assert series["largest"]["topology"] == "1x2"
    # Nothing is said of what is beyond the first topology that cannot be told.
    assert [one["topology"] for one in series["untold"]] == ["1x4"]
    assert series["first_below"] is None
    (stricter,) = answer_of(layout, efficiency=0.3)["scaling"]
    assert stricter["largest"]["topology"] == "1x8"
    assert stricter["first_below"] is None


def test_what_it_costs(tmp_path):
    layout = write_rows(tmp_path, {("single", "1x1"): 800, ("ddp", "1x2"): 1200})
    with edited(layout.plan) as plan:
        plan["site"]["device_hour_price"] = "2.50 EUR"
    answer = find_answer(read(layout))
    cheapest = answer["workloads"][0]["cheapest"]
    hours = cheapest["device_hours_per_epoch"]["value"]
    assert cheapest["price_per_epoch"]["value"] == pytest.approx(2.5 * hours, rel=1e-3)
    notes = {note.term: note.text for note in in_sentences(answer)}
    assert "EUR" in notes["cheapest"]


def test_one_row_is_no_choice(tmp_path):
    layout = write_rows(tmp_path, {("single", "1x1"): 800})
    answer = find_answer(read(layout))
    (note,) = in_sentences(answer)
    assert note.term == "no answer"
    assert note.text.startswith("only single on 1 device says how fast a strategy is")


def test_rows_on_parts_of_a_device_are_no_choice(tmp_path):
    cells = [make_cell("single"), make_cell("ddp", "1x2")]
    planned = [plan_cell(cell, marks=["functional"]) for cell in cells]
    layout = write_plan(tmp_path, planned)
    for one in planned:
        write_launches(layout, one)
    (note,) = in_sentences(find_answer(read(layout)))
    assert note.text.startswith("no row says how fast a strategy is")


def test_few_launches_are_a_doubt_and_what_to_do_next(tmp_path):
    cells = [plan_cell(make_cell("single")), plan_cell(make_cell("ddp", "1x2"))]
    layout = write_plan(tmp_path, cells, launches=1)
    for planned, rate in zip(cells, (800, 1500), strict=True):
        record: dict[str, Any] = {"seconds": {"launch": 36.0}, "gate": None}
        write_launch(layout, planned, rate=rate, wanted=1, **record)
    facts = answer_of(layout)
    doubts = {one["cell"]: one["doubts"] for one in facts["trust"]}
    assert doubts[DDP2][0] == "1 launch only, so it has no interval"
    assert "no gate has checked what it trains" in doubts[DDP2]
    planned = {one["settles"]: one for one in facts["next"]}
    assert planned["fastest"]["cells"] == [
        {"cell": DDP2, "launches": 4, "more": 3},
        {"cell": SINGLE, "launches": 4, "more": 3},
    ]
    # Three launches of 36 s: by two devices, and by one.
    assert planned["fastest"]["device_hours"] == pytest.approx(0.09)


def test_rows_of_different_machines_are_a_doubt(tmp_path):
    layout = write_rows(tmp_path, {("single", "1x1"): 800, ("ddp", "1x2"): 1500})
    for path in layout.records.glob(f"{SINGLE}/1/*/record.json"):
        with edited(path) as record:
            record["hosts"][0]["cpu"] = "Another CPU"
    doubts = {one["cell"]: one["doubts"] for one in answer_of(layout)["trust"]}
    assert f"it ran on other hardware than {DDP2}" in doubts[SINGLE]
    assert not any("hardware" in doubt for doubt in doubts.get(DDP2, ()))


def test_a_launch_that_was_disturbed_again_is_a_doubt(tmp_path):
    layout = write_rows(tmp_path, {("single", "1x1"): 800, ("ddp", "1x2"): 1500})
    (path,) = layout.records.glob(f"{DDP2}/1/3/record.json")
    record = json.loads(path.read_text())
    record["surroundings"] = [make_surroundings(foreign=0.31)]
    path.write_text(json.dumps(record))
    doubts = {one["cell"]: one["doubts"] for one in answer_of(layout)["trust"]}
    (doubt,) = [one for one in doubts[DDP2] if "disturbed" in one]
    assert "1 of its 6 launches" in doubt
    assert "other programs took 31%" in doubt


def test_training_is_compared_at_equal_samples_and_times(tmp_path):
    layout = write_rows(tmp_path, {("single", "1x1"): 800, ("ddp", "1x2"): 1500})
    training = answer_of(layout)["training"]
    assert training["samples"] == 10 * 64
    batches = {one["cell"]: one["global_batch"] for one in training["cells"]}
    assert batches == {DDP2: 128, SINGLE: 64}
    # Both lose as much in a step, so with half of the steps less is learned.
    losses = {
        one["cell"]: one["loss_at_equal_samples"]["value"] for one in training["cells"]
    }
    assert losses[DDP2] > losses[SINGLE]


def test_planned_launches_are_those_of_the_brackets_of_the_table(tmp_path):
    """With the confidence of the table, and beside launches that do not count."""
    random = np.random.default_rng(2)
    keys = [("single", "1x1"), *((name, "1x2") for name in ("ddp", "fsdp", "zero1"))]
    planned = [plan_cell(make_cell(*key)) for key in keys]
    layout = write_plan(tmp_path, planned, launches=8)
    for place, one in enumerate(planned):
        for launch in range(1, 9):
            # An efficiency of 0.72 cannot be told from 0.7.
            rate = (1152 if place else 800) * random.lognormal(0, 0.06)
            slow = 4 if (place, launch) == (1, 3) else 1
            turn = {"seed": 1, "number": launch, "position": 1}
            write_launch(layout, one, launch, rate=rate / slow, wanted=8, round=turn)
    rows = {summary.row.id: summary for summary in read(layout).summaries}
    plans = {plan["settles"]: plan for plan in answer_of(layout)["next"]}
    disturbed = rows[DDP2]
    assert disturbed.disturbed == (2,)
    assert disturbed.confidence > 0.95
    ratio = disturbed.fit.ratio(DDP2, SINGLE)
    distance = abs(np.log(0.7 / disturbed.numbers["efficiency"].value))
    count = ratio.launches_for(distance, disturbed.confidence)
    counts = {cell["cell"]: cell["launches"] for cell in plans["scaling"]["cells"]}
    assert count is not None
    assert counts[DDP2] == count + 1
    # At 95 % for this ratio alone, the plan would be too short for the table.
    assert count > ratio.launches_for(distance, 0.95)


# --- words are values -----------------------------------------------------------------


def test_every_document_says_what_answer_json_holds(tmp_path):
    layout = write_example(tmp_path)
    write_tables(layout)
    answer = json.loads(layout.answer("json").read_text())
    notes = in_sentences(answer)
    assert [note.term for note in notes][:2] == ["fastest", "cheapest"]
    names, _ = shorten([one.row.id for one in read(layout).summaries])
    details = layout.answer("md").read_text().replace("*", "")
    for note in notes:
        assert f"- {note.term}: {replace_ids(note.text, names)}" in details
    page = layout.report.read_text()
    for note in in_brief(answer):
        text = " ".join(note.text.split()).replace("|", "\\|")
        assert f"- {note.term}: {text}" in details
        words = " ".join(note.text.split())
        assert f"<dt>{note.term}</dt><dd>{words}</dd>" in " ".join(page.split())
    # A number of the file that changes does change the sentence.
    answer["workloads"][0]["fastest"]["throughput"]["value"] *= 2
    assert in_sentences(answer)[0] != notes[0]


def test_command(tmp_path, capsys):
    layout = write_rows(tmp_path, {("single", "1x1"): 800, ("ddp", "1x2"): 1500})
    results = (str(layout.root),)
    assert main(["answer", *results]) == 0
    assert "\nUSE     " in capsys.readouterr().out
    assert main(["answer", *results, "--details"]) == 0
    assert "fastest" in capsys.readouterr().out
    assert main(["answer", *results, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == find_answer(read(layout))
    assert main(["answer", *results, "--next"]) == 0
    assert capsys.readouterr().out == (
        "nothing is open: no launch would settle anything\n"
    )
    assert main(["answer", *results, "--margin", "3"]) == 2
    said = "--margin: expected a share between 0 and 1, not 3.0"
    assert said in capsys.readouterr().err


def test_status_3_if_it_cannot_tell(tmp_path, cli):
    layout = write_rows(tmp_path, {("single", "1x1"): 800, ("ddp", "1x2"): 803})
    command = ["answer", str(layout.root), "--margin", "0.02"]
    assert "launches of both would settle it" in " ".join(
        cli(*command, "--details", status=3).out.split()
    )
    (fastest, *_) = json.loads(cli(*command, "--next", "--json", status=3).out)
    assert {one["cell"] for one in fastest["cells"]} == {SINGLE, DDP2}
