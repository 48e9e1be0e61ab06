"""The answer in fifteen lines: who is chosen, and in which words."""

from __future__ import annotations

import itertools

import pytest

from rankbench.results.advice.answer import find_answer
from rankbench.results.advice.choice import Facts
from rankbench.results.advice.words import in_brief
from rankbench.results.numbers.result_set import ResultSet, read
from unit.synthetic import make_cell, plan_cell, write_launch, write_plan

pytestmark = pytest.mark.unit

TERMS = ["WHAT", "USE", "SCALES", "LIMIT", "COST", "LEARNS", "TRUST", "NEXT"]


def said_of(found: ResultSet) -> tuple[Facts, dict[str, str]]:
    """The only workload, and what is said of it by term."""
    answer = find_answer(found)
    (facts,) = answer["workloads"]
    notes = in_brief(answer)
    assert [n.term for n in notes] == [t for t in TERMS if t in {n.term for n in notes}]
    return facts, {note.term: note.text.replace("\n", " ") for note in notes}


def test_a_control_is_no_candidate(tmp_path):
    """ddp on one device costs nothing beside single, and nobody would choose it."""
    cells = [make_cell("single"), make_cell("ddp", "1x1"), make_cell("ddp", "1x2")]
    planned = [plan_cell(cell) for cell in cells]
    layout = write_plan(tmp_path, planned, launches=8)
    for one, rate in zip(planned, (800, 810, 1500), strict=True):
        for number in range(1, 9):
            write_launch(layout, one, number, rate=rate * (1 + number / 500), wanted=8)
    facts, said = said_of(read(layout))
    assert said["COST"].startswith("cheapest: single on 1 device")
    assert "1 device: 8" in said["SCALES"]
    assert facts["rows"] == 2


def test_words_come_before_ids(tmp_path):
    cells = [
        make_cell("single"),
        make_cell("ddp", "2x2"),
        make_cell("ddp", "2x2", options={"bucket_mb": 1}),
    ]
    planned = [plan_cell(cell, suffix=str(place)) for place, cell in enumerate(cells)]
    layout = write_plan(tmp_path, planned, launches=4)
    for one, number in itertools.product(planned, range(1, 5)):
        write_launch(layout, one, number, rate=800 + number, wanted=4)
    facts, said = said_of(read(layout))
    names = list(facts["names"].values())
    assert names[0] == "single on 1 device"
    assert names[1].startswith("ddp over gloo (bucket_mb=")
    assert names[1].endswith(" on 2 x 2 devices")
    assert len(set(names)) == 3
    assert not any(name in " ".join(said.values()) for name in facts["names"])


def test_a_doubt_is_said_in_full(tmp_path):
    planned = [plan_cell(make_cell(*which)) for which in (("single",), ("ddp", "1x2"))]
    layout = write_plan(tmp_path, planned, launches=8)
    for one, rate in zip(planned, (800, 1500), strict=True):
        for number in range(1, 9):
            # Each launch is slower than the one before.
            write_launch(layout, one, number, rate=rate * (1 - number / 50), wanted=8)
    facts, said = said_of(read(layout))
    doubts = {doubt for row in facts["trust"] for doubt in row["doubts"]}
    assert doubts
    assert all(doubt in said["TRUST"] for doubt in doubts)


@pytest.mark.parametrize("damaged", [True, False])
def test_what_failed_is_measured_again(tmp_path, damaged):
    planned = plan_cell(make_cell("single"))
    layout = write_plan(tmp_path, [planned], launches=1)
    status = "ok" if damaged else "crashed"
    place = write_launch(layout, planned, 1, status=status, wanted=1)
    if damaged:
        (place / "record.json").write_text("{")
    said = {note.term: note.text for note in in_brief(find_answer(read(layout)))}
    rerun = said["NEXT"].replace("\n", " ").rpartition("rankbench ")[2]
    assert rerun == ("rerun --stale" if damaged else "rerun --failed")


def test_a_long_name_cuts_off_no_number(tmp_path):
    long = {"bucket_mb": 0.125, "gradient_as_bucket_view": True, "static_graph": True}
    cells = [
        make_cell("single"),
        make_cell("ddp", "2x2", options=long),
        make_cell("ddp", "2x2", options={"bucket_mb": 1}),
    ]
    planned = [plan_cell(cell, suffix=str(place)) for place, cell in enumerate(cells)]
    layout = write_plan(tmp_path, planned, launches=8)
    for one, rate in zip(planned, (800, 2000, 1500), strict=True):
        for number in range(1, 9):
            write_launch(layout, one, number, rate=rate * (1 + number / 500), wanted=8)
    _, said = said_of(read(layout))
    assert "static_graph=true" in said["USE"]
    assert " samples/s." in said["USE"]


def test_workloads_are_told_apart(tmp_path):
    """By settings that the end of a long title would not show."""
    cells = [make_cell("single", optimizer=one) for one in ("sgd", "adamw")]
    planned = [plan_cell(cell, suffix=str(place)) for place, cell in enumerate(cells)]
    layout = write_plan(tmp_path, planned, launches=2)
    for one, number in itertools.product(planned, (1, 2)):
        write_launch(layout, one, number, rate=800 + number, wanted=2)
    notes = in_brief(find_answer(read(layout)))
    opened = [note.text for note in notes if note.term == "WHAT"]
    assert len(opened) == len(set(opened)) == 2
