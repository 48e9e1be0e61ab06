"""Launches that no bracket can be made of: words, no trace, and no invented bracket."""

from __future__ import annotations

import pytest

from factories import make_surroundings
from rankbench.record import Layout
from rankbench.results.advice.answer import find_answer
from rankbench.results.numbers.result_set import read
from rankbench.results.sections.answer import in_brief
from unit.synthetic import (
    make_cell,
    plan_cell,
    write_launch,
    write_launches,
    write_plan,
    write_rows,
)

pytestmark = pytest.mark.unit

SINGLE, DDP = plan_cell(make_cell("single")), plan_cell(make_cell("ddp", "1x2"))


def rows_of(layout: Layout) -> dict[str, dict[str, str]]:
    """The table by strategy; the answer must find words, too."""
    rows = write_rows(layout).values()
    assert in_brief(find_answer(read(layout)))
    return {row["strategy"]: row for row in rows}


def turn(number: int, launch: int) -> dict[str, int]:
    return {"seed": number, "number": launch, "position": 1}


@pytest.mark.parametrize(
    "damage",
    [
        ('"samples": 512', '"samples": 0'),
        ('"samples": 512', '"samples": NaN'),
        ('"samples": 512', '"samples": Infinity'),
        ('"window_s": ', '"window_s": -'),
        ('"window_s": ', '"window_s": 1e999, "was": '),
    ],
)
def test_a_speed_that_is_none_names_the_file(tmp_path, damage):
    layout = write_plan(tmp_path, [SINGLE], launches=1)
    path = write_launch(layout, SINGLE, wanted=1) / "record.json"
    text = path.read_text()
    assert damage[0] in text
    path.write_text(text.replace(*damage))
    with pytest.raises(ValueError, match=r"record\.json"):
        read(layout, strict=True)
    (summary,) = read(layout).rows
    assert summary.status == "stale"
    assert "record.json is damaged" in str(summary.reason)


def alone(layout: Layout) -> None:
    """Without rounds."""
    write_launches(layout, SINGLE, round=None)
    write_launches(layout, DDP, rate=1500, round=None)


def apart(layout: Layout) -> None:
    """In rounds, but in none together."""
    for launch in range(1, 7):
        write_launch(layout, SINGLE, launch, rate=790 + launch, round=turn(1, launch))
        write_launch(layout, DDP, launch, rate=1500 + launch, round=turn(2, launch))


@pytest.mark.parametrize("write", [alone, apart])
def test_without_common_rounds_there_is_no_ratio(tmp_path, write):
    layout = write_plan(tmp_path, [SINGLE, DDP])
    write(layout)
    row = rows_of(layout)["ddp"]
    assert "unpaired" in row["marks"]
    assert row["speedup"] == row["speedup_verdict"] == row["efficiency"] == ""


@pytest.mark.parametrize("count", [1, 3])
def test_few_launches_have_no_bracket_and_no_verdict(tmp_path, count):
    layout = write_plan(tmp_path, [SINGLE, DDP], launches=count)
    write_launches(layout, SINGLE, count=count, wanted=count)
    write_launches(layout, DDP, rate=1500, count=count, wanted=count)
    row = rows_of(layout)["ddp"]
    assert row["speedup"]
    names = ("speedup_lo", "speedup_hi", "speedup_verdict")
    assert [row[name] for name in names] == [""] * 3


def test_all_launches_disturbed(tmp_path):
    layout = write_plan(tmp_path, [SINGLE, DDP], launches=4)
    busy = {"surroundings": [make_surroundings(foreign=0.4)], "repeats": 2}
    for planned, rate in ((SINGLE, 800.0), (DDP, 1500.0)):
        for launch in range(1, 7):
            write_launch(layout, planned, launch, wanted=4, rate=rate + launch, **busy)
    rows = rows_of(layout)
    for row in rows.values():
        assert (row["status"], row["repeated"]) == ("ok", "2")
        assert "disturbed" in row["marks"]
        assert (row["launches_ok"], row["launches"]) == ("4", "4")
