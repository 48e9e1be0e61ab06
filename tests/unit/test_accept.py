"""Acceptance: which rows pass, fail, or need more launches; and how often it errs."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from rankbench.results.compare.comparison import (
    FAIL,
    NO_NUMBER,
    PASS,
    UNDECIDED,
    Comparison,
    accept,
)
from rankbench.results.compare.sides import (
    CellLaunches,
    Side,
    read_reference,
    read_side,
)
from rankbench.results.compare.text import (
    accepted_to_json,
    accepted_to_text,
    replayed_to_json,
    replayed_to_text,
)
from unit.synthetic import plan_one, write_launches

pytestmark = pytest.mark.unit


def side(*, hash_: str = "h", status: str = "ok", **rows: list[float]) -> Side:
    reason = None if status == "ok" else "why"
    cells = {
        name: CellLaunches(
            hash=hash_, status=status, reason=reason, throughput=tuple(rates)
        )
        for name, rates in rows.items()
    }
    return Side(name="side", experiment="x", cells=cells)


def judge(old: Side, new: Side, at_least: float = 0.95) -> Comparison:
    return accept(old, new, at_least=at_least)


LAUNCHES = list(np.linspace(97, 103, 12))


def times(factor: float, values: list[float] = LAUNCHES) -> list[float]:
    return [factor * value for value in values]


def test_a_row_passes_fails_or_is_undecided():
    old = side(a=LAUNCHES, b=LAUNCHES, c=LAUNCHES)
    new = side(a=LAUNCHES, b=times(0.85), c=times(0.945))
    found = judge(old, new)
    assert [row.verdict for row in found.cells] == [PASS, FAIL, UNDECIDED]
    assert found.verdict == FAIL
    # With 12 launches of the baseline, a line half a percent away cannot be decided.
    assert found.cells[2].launches is None
    assert judge(side(a=LAUNCHES), new).verdict == PASS
    assert judge(side(a=LAUNCHES, c=LAUNCHES), new).verdict == UNDECIDED


def test_undecided_says_how_many_launches_would_decide():
    old = side(a=list(np.linspace(97, 103, 60)))
    (row,) = judge(old, side(a=times(0.97, list(np.linspace(94, 106, 6))))).cells
    assert row.verdict == UNDECIDED
    assert row.launches is not None
    assert 6 < row.launches < 200


@pytest.mark.parametrize(
    ("new", "verdict", "why", "launches"),
    [
        (side(a=[100.0, 101.0]), UNDECIDED, "2 launches; 4 are needed", 4),
        (side(a=LAUNCHES, hash_="g"), UNDECIDED, "defined otherwise in the", None),
        (side(a=[], status="crashed"), FAIL, "crashed: why", None),
        (side(a=[], status="not-run"), UNDECIDED, "not-run: why", None),
        (side(), UNDECIDED, "not in RESULTS", None),
    ],
)
def test_rows_without_a_test_say_why(new, verdict, why, launches):
    """A row beside it can be compared, and another has no number in the reference."""
    new = replace(new, cells={**new.cells, **side(b=LAUNCHES).cells})
    old = side(a=LAUNCHES, b=LAUNCHES)
    old = replace(old, cells={**old.cells, **side(c=[], status="oom").cells})
    found = judge(old, new)
    row, decided, without = found.cells
    assert (row.verdict, decided.verdict, without.verdict) == (verdict, PASS, NO_NUMBER)
    assert row.why.startswith(why)
    assert row.launches == launches
    assert found.verdict == verdict
    words = {FAIL: "not reproduced", UNDECIDED: "cannot tell"}
    rows = replayed_to_json(found)
    assert [row["verdict"] for row in rows] == [
        words[verdict],
        "reproduced",
        "cannot tell",
    ]
    assert [row["published"] for row in rows] == [True, True, False]
    assert rows[2]["why"] == "no number in the bundle: oom"
    assert "RESULTS" not in replayed_to_text(found)
    assert len(accepted_to_json(found)["rows"]) == 2


def test_verdicts_are_corrected_for_the_number_of_rows():
    """Six launches a side can decide one row at 5 %, but not fifty of them."""
    names = [f"r{i}" for i in range(50)]
    few = times(1.0, list(np.linspace(97, 103, 6)))
    slow = times(0.9, few)
    assert judge(side(r0=few), side(r0=slow)).verdict == FAIL
    many = judge(
        side(**dict.fromkeys(names, few)),
        side(r0=slow, **dict.fromkeys(names[1:], few)),
    )
    assert many.cells[0].verdict == UNDECIDED


def test_a_published_number_has_no_launches(tmp_path):
    file = tmp_path / "published.csv"
    text = "cell,throughput,source,status\r\n a ,100,paper,ok\r\nb,,paper,oom\r\n\r\n"
    file.write_bytes(b"\xef\xbb\xbf" + text.encode())
    published = read_reference(file)
    assert list(published.cells) == ["a", "b"]
    told = accepted_to_text(judge(published, side(a=LAUNCHES)))
    assert "1 of 2 rows of the baseline were compared" in told
    assert judge(published, side(a=LAUNCHES)).verdict == PASS
    assert judge(published, side(a=times(0.9))).verdict == FAIL
    # Below four launches nothing is said.
    assert judge(published, side(a=[100.0] * 3)).verdict == UNDECIDED


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cell,value\na,1\n", "no column throughput"),
        ("cell,throughput\na,fast\n", "row 2: throughput: expected samples/s"),
        ("cell,throughput\na,-1\n", "row 2: throughput: expected samples/s"),
        ("cell,throughput\na,1_7\n", "row 2: throughput: expected samples/s"),
        ("cell,throughput\na,\n", "row 2: throughput: expected samples/s"),
        ("cell,throughput\na,1\nb\n", "row 3: 1 fields: the first row has 2"),
        ("cell,throughput\na,1\nb,1,2\n", "row 3: 3 fields"),
        ("cell,throughput\na,1\na,2\n", "row 3: cell: 'a' is empty or there twice"),
        ("cell;throughput\na;1\n", "no column cell, throughput"),
        ("cell,throughput\na," + "1" * 200_000, "is not CSV in UTF-8"),
        ("", "no column cell, throughput"),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "latin-1"])
def test_a_damaged_table_is_named(tmp_path, text, said, encoding):
    file = tmp_path / "published.csv"
    file.write_bytes(f"{text}\xe9".encode(encoding) if encoding != "utf-8" else b"")
    if encoding == "utf-8":
        file.write_text(text)
    else:
        said = "is not CSV in UTF-8"
    with pytest.raises(ValueError, match=said) as raised:
        read_reference(file)
    assert str(file) in str(raised.value)
    with pytest.raises(ValueError, match="can only be the BASELINE"):
        read_side(file)


@pytest.mark.parametrize(
    ("old", "arguments", "said"),
    [
        (side(a=LAUNCHES), {"at_least": 0.0}, "--at-least 0.0"),
        (side(a=LAUNCHES), {"confidence": 1.0}, "confidence 1.0"),
        (side(b=LAUNCHES), {}, "no cell in common"),
        (side(a=[]), {}, "no row has a throughput"),
    ],
)
def test_what_makes_no_sense_is_refused(old, arguments, said):
    with pytest.raises(ValueError, match=said):
        accept(old, side(a=LAUNCHES), **{"at_least": 0.95, **arguments})


def test_wrong_verdicts_are_rare_and_clear_cases_are_decided():
    """At 3 % scatter; `benchmarks/accepting.py` has more launches and lines."""
    random = np.random.default_rng(5)
    wrong = decided = 0
    for _ in range(200):
        old, near, far = (
            list(random.normal(100 * factor, 3, 20)) for factor in (1, 0.94, 0.90)
        )
        wrong += judge(side(a=old), side(a=near)).verdict == PASS
        decided += judge(side(a=old), side(a=far)).verdict == FAIL
    assert wrong <= 0.05 * 200
    assert decided >= 0.9 * 200


def test_command(tmp_path, cli):
    paths = []
    for name, rate in (("old", 1000.0), ("same", 995.0), ("slow", 800.0)):
        layout, planned = plan_one(tmp_path / name, "single")
        write_launches(layout, planned, rate=rate, count=8, wanted=8)
        paths.append(str(layout.root))
    old, same, slow = paths
    assert cli("accept", old, same).out.startswith(f"PASS: {same} against {old}: ")
    assert "FAIL" in cli("accept", old, slow, status=1).out
    told = json.loads(
        cli("accept", old, same, "--at-least", "0.993", "--json", status=3).out
    )
    assert (told["verdict"], told["rows"][0]["verdict"]) == (UNDECIDED, UNDECIDED)
    baseline = str(tmp_path / "baseline.json")
    cli("compare", old, "--save-baseline", baseline)
    cli("accept", baseline, same)
    cli("accept", old, tmp_path / "nothing", status=2)
