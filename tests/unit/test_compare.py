"""`rankbench compare`: verdicts, circumstances, exit status, and bad input."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pages import Words
from rankbench.results.compare.comparison import Comparison, compare, describe, to_json
from rankbench.results.compare.sides import (
    CellLaunches,
    Side,
    encode_baseline,
    find_differing,
    read_side,
)
from unit.synthetic import (
    edited,
    plan_cell,
    write_cells,
    write_example,
    write_launch,
    write_launches,
    write_plan,
)

pytestmark = pytest.mark.unit

SINGLE = plan_cell("single")
DDP = plan_cell("ddp", "1x2")
NODE = {"host": "node2", "cpu": "Another CPU", "cores": 2, "memory_gib": 23.4}
LAUNCHES = list(np.linspace(97, 103, 12))
UNPAIRED = "another session"


def write_run(
    root: Path, single: float = 0, ddp: float = 0, *, count: int = 6, **changes: Any
) -> Path:
    """Results of the cells whose rate is given, of `count` launches each."""
    rates = [(cell, rate) for cell, rate in ((SINGLE, single), (DDP, ddp)) if rate]
    layout = write_plan(root, [cell for cell, _ in rates], launches=count)
    for cell, rate in rates:
        write_launches(layout, cell, rate=rate, count=count, wanted=count, **changes)
    return root


def on_day(day: int) -> dict[str, str]:
    begun = f"2026-01-{day:02d}T00"
    return {"started": f"{begun}:00:00+00:00", "ended": f"{begun}:10:00+00:00"}


def write_alternatives(
    root: Path, *slow: float, rounds: bool = True, drift: float = 0.0, **own: Any
) -> Path:
    """Cells of one experiment that differ in `own`: key -> value of each.

    Args:
        slow: rate of each cell over that of the first.
    """
    ((key, values),) = own.items()
    cells = [
        plan_cell("ddp", "1x2", suffix=f".{n}", **({key: value} if value else {}))
        for n, value in enumerate(values)
    ]
    layout = write_plan(root, cells, launches=8)
    for cell, factor in zip(cells, slow, strict=True):
        for number in range(1, 9):
            turn = {"seed": 1, "number": number, "position": 1} if rounds else None
            rate = 1000 * factor * (1 - drift * number)
            write_launch(layout, cell, number, rate=rate, wanted=8, round=turn)
    return root


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Two runs; in the second one, a day later, `ddp` is 10 % slower."""
    old = write_run(tmp_path / "old", 800, 1500, **on_day(1))
    return old, write_run(tmp_path / "new", 802, 1350, **on_day(2))


@pytest.fixture
def compare_json(cli):
    def call(*arguments: object, status: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            cli("compare", *arguments, "--json", status=status).out
        )
        return found

    return call


def verdicts(found: dict[str, Any]) -> list[str]:
    return [cell["verdict"] for cell in found["cells"]]


# Alternatives of one experiment: better, worse or equal?


IMAGES = ("--between", "image=gloo,mpi")


@pytest.mark.parametrize(
    ("slow", "verdict", "status"),
    [
        ((1, 0.95), "worse", 1),
        ((0.95, 1), "better", 0),
        ((1, 1.00001), "equal", 0),
        # As in a table, a bracket that excludes 1 is a difference, however small.
        ((1, 0.99), "worse", 1),
    ],
)
def test_alternatives_are_compared_within_rounds(
    tmp_path, compare_json, slow, verdict, status
):
    write_alternatives(tmp_path, *slow, drift=0.03, image=("gloo", "mpi"))
    found = compare_json(tmp_path, *IMAGES, status=status)
    assert verdicts(found) == [verdict]
    ends = found["cells"][0]["ratio_lo"], found["cells"][0]["ratio_hi"]
    assert ends == pytest.approx([slow[1] / slow[0]] * 2, rel=1e-3)


def test_alternatives_without_rounds_have_no_verdict(tmp_path, compare_json):
    write_alternatives(tmp_path, 1, 0.5, rounds=False, image=("gloo", "mpi"))
    assert verdicts(compare_json(tmp_path, *IMAGES, status=3)) == [UNPAIRED]


def test_a_variable_is_compared_with_cells_that_do_not_set_it(tmp_path, compare_json):
    write_alternatives(tmp_path, 1, 0.95, env=(None, {"A": "1"}))
    found = compare_json(tmp_path, "--between", "A=unset,1", status=1)
    assert verdicts(found) == ["worse"]


@pytest.mark.parametrize(
    ("between", "complaint"),
    [
        ("image", "expected KEY=A,B, such as image=gloo,mpi"),
        ("image=a,a", "expected KEY=A,B"),
        ("image=gloo,ccl", "no cell has image=ccl (there are gloo, mpi)"),
        ("batch=32,128", "did you mean 'batch_size'? (its cells differ in image)"),
    ],
)
def test_a_key_that_parts_nothing_is_refused(tmp_path, cli, between, complaint):
    write_alternatives(tmp_path, 1, 1, image=("gloo", "mpi"))
    said = cli("compare", tmp_path, "--between", between, status=2).err
    assert complaint in said


# Runs: a ratio, but no verdict on code.


def test_runs_of_two_days_have_ratios_without_a_verdict(pair, cli, compare_json):
    found = compare_json(*pair, status=3)
    assert verdicts(found) == [UNPAIRED] * 2
    ddp = found["cells"][1]
    assert ddp["ratio_lo"] < 0.9 < ddp["ratio_hi"] < 1
    assert len(found["sides"][1]["cells"][DDP["id"]]["throughput"]) == 6
    assert f"{UNPAIRED}  their launches" in cli("compare", *pair, status=3).out


def test_a_copy_is_compared_with_nothing(pair, tmp_path, compare_json, cli):
    copy = shutil.copytree(pair[0], tmp_path / "copy")
    assert verdicts(compare_json(pair[0], copy, status=3)) == ["the same launches"] * 2
    share = ("--at-least", "0.5")
    assert verdicts(compare_json(pair[0], copy, *share, status=3)) == ["UNDECIDED"] * 2
    assert "is named twice" in cli("compare", copy, copy, status=2).err


def test_another_machine_and_what_differs_are_said_first(tmp_path, cli, compare_json):
    software = {"python": "3.11.7", "torch": "2.14.0", "cuda": None, "nccl": None}
    image = {"name": "gloo-cpu", "recipe": "r", "sha256": "ab" * 32}
    gpus = [{"name": "GPU", "memory_gib": 80.0}] * 2
    old = write_run(tmp_path / "old", 800)
    inside = SINGLE | {"image": "gloo-cpu"}
    layout = write_plan(tmp_path / "new", [inside], images={"gloo-cpu": image})
    facts: dict[str, Any] = {"software": software, "code": {"rank": "cd" * 32}}
    facts |= {"image": image, "hosts": [{**NODE, "kernel": "6.1", "gpus": gpus}]}
    write_launches(layout, inside, rate=984, **facts)
    found = compare_json(old, layout.root, status=3)
    assert verdicts(found) == ["another machine"]
    assert found["cells"][0]["ratio_lo"] > 1.1
    sides = [read_side(root).facts for root in (old, layout.root)]
    assert find_differing(*sides) == {
        name: ((one,), (other,))
        for name, one, other in (
            ("host", "node1", "node2"),
            ("cpu", "Example CPU", "Another CPU"),
            ("GPUs", "none", "2 x GPU 80.0"),
            ("torch", "2.13.0", "2.14.0"),
            ("image", "none", "gloo-cpu"),
            ("image sha256", "none", "ab" * 6),
            ("code of ranks", "c0de" * 3, "cd" * 6),
        )
    }
    out = cli("compare", old, layout.root, status=3).out
    places = [out.index(one) for one in ("another machine", "2.14.0", "1 another")]
    assert places == sorted(places)


def test_several_runs_are_one_table_and_one_page(pair, tmp_path, cli, compare_json):
    lab = write_run(tmp_path / "lab", 400, 900, hosts=[{**NODE, "gpus": []}])
    found, of_two = (compare_json(*sides, status=3) for sides in ((*pair, lab), pair))
    assert verdicts(found) == [UNPAIRED] * 2 + ["another machine"] * 2
    # The brackets of all runs hold together, so each is wider than that of two runs.
    assert found["cells"][1]["ratio_hi"] > of_two["cells"][1]["ratio_hi"]
    page = tmp_path / "runs.html"
    out = cli("compare", *pair, lab, "--page", page, status=3).out
    cells = ["single.none.1x1"] * 2 + ["ddp.gloo.1x2"] * 2
    rows = [line.split() for line in out.splitlines() if "samples/s" in line]
    assert [(row[0], row[1]) for row in rows] == list(zip(cells, "BCBC", strict=True))
    words = Words(page.read_text())
    assert all(one in words.text for one in (str(lab), "another machine", DDP["id"]))
    assert not {"link", "script"} & {*words.tags}
    svg = (tmp_path / "plots/runs.svg").read_text()
    for machine in ("Example", "Another"):
        assert svg.count(f"<!-- 2 cores of {machine} CPU, 23.4 GiB -->") == 1


# A machine: does it keep a share of what a baseline promises?


@pytest.mark.parametrize(
    ("ddp", "share", "verdict", "status"),
    [
        (1480, "0.9", "PASS", 0),
        (1200, "0.9", "FAIL", 1),
        (1350, "0.9", "UNDECIDED", 3),
        (1350, None, "FAIL", 1),
    ],
)
def test_a_share_decides_across_runs(
    tmp_path, compare_json, cli, ddp, share, verdict, status
):
    """A baseline is as good as its results, and small."""
    old = write_run(tmp_path / "old", 800, 1500)
    new = write_run(tmp_path / "new", 800, ddp, **on_day(2))
    baseline = tmp_path / "baseline.json"
    said = cli("compare", old, "--save-baseline", baseline).out
    assert said == f"{baseline}: 2 cells with a number of {old}\n"
    assert baseline.stat().st_size < 5000
    of_results = compare_json(old, new, "--at-least", share or 0.95, status=status)
    shutil.rmtree(old)
    named = (baseline, new, "--at-least", share or 0.95)
    found = compare_json(*named, status=status)
    assert found["verdict"] == verdict
    for cell in (*found["cells"], *of_results["cells"]):
        del cell["base"]
    assert found["cells"] == of_results["cells"]
    assert cli("compare", *named, status=status).out.startswith(f"{verdict} ")


def side(name: str = "new", *, key: str = "h", status: str = "ok", **rows: Any) -> Side:
    reason = None if status == "ok" else "why"
    cells = {
        row: CellLaunches(
            **{"hash": key, "status": status, "reason": reason},
            **{"launches": len(rates), "throughput": rates},
            started=[f"{name}{n}" for n, _ in enumerate(rates)],
        )
        for row, rates in rows.items()
    }
    return Side(name=name, experiment="x", cells=cells)


def judge(old: Side, new: Side, at_least: float = 0.95) -> Comparison:
    return compare([old, new], at_least=at_least)


def times(factor: float, values: list[float] = LAUNCHES) -> list[float]:
    return [factor * value for value in values]


def test_a_row_passes_fails_or_is_undecided():
    old = side("old", a=LAUNCHES, b=LAUNCHES, c=LAUNCHES)
    new = side(a=times(1.001), b=times(0.85), c=times(0.945))
    found = judge(old, new)
    assert [row.verdict for row in found.cells] == ["PASS", "FAIL", "UNDECIDED"]
    assert found.verdict == "FAIL"
    # With 12 launches of the baseline, a line half a percent away cannot be decided.
    assert found.cells[2].why == "not even 200 launches would decide"
    old = side("old", a=list(np.linspace(97, 103, 60)))
    (row,) = judge(old, side(a=times(0.97, list(np.linspace(94, 106, 6))))).cells
    assert row.verdict == "UNDECIDED"
    assert 6 < int(row.why.split()[1]) < 200


@pytest.mark.parametrize(
    ("new", "verdict", "why"),
    [
        (side(a=[100.0, 101.0]), "UNDECIDED", "2 launches; 4 are needed"),
        (side(a=LAUNCHES, key="g"), "UNDECIDED", "defined otherwise"),
        (side(a=[], status="crashed"), "FAIL", "crashed: why"),
        (side(a=[], status="not-run"), "UNDECIDED", "not-run: why"),
        (side(), "UNDECIDED", "not in new"),
    ],
)
def test_rows_without_a_test_say_why(new, verdict, why):
    """A row beside it can be compared, and another has no number in the reference."""
    new = replace(new, cells={**new.cells, **side(b=LAUNCHES).cells})
    old = side("old", a=LAUNCHES, b=LAUNCHES)
    old = replace(old, cells={**old.cells, **side(c=[], status="oom").cells})
    found = judge(old, new)
    rows = {row.id: row for row in found.cells}
    assert [rows[name].verdict for name in "abc"] == [verdict, "PASS", "no number"]
    assert rows["a"].why == why
    assert found.verdict == verdict
    assert to_json(found)["counts"]["PASS"] == 1
    assert why in [str(row[-1]) for row in describe(found)[1].rows]


def test_a_launch_that_is_far_off_does_not_count():
    old, new = side("old", a=LAUNCHES), side(a=[100.0, 100.5, 99.5, 40.0])
    assert compare([old, new]).cells[0].verdict == "too few launches"
    (row,) = judge(old, new).cells
    assert (row.verdict, row.why) == ("UNDECIDED", "3 launches count; 4 are needed")


def test_verdicts_are_corrected_for_the_number_of_rows():
    """Six launches a side can decide one row at 5 %, but not fifty of them."""
    few = list(np.linspace(97, 103, 6))
    for count, verdict in ((1, "FAIL"), (50, "UNDECIDED")):
        rows = {f"r{i}": few for i in range(count)}
        new = side(**rows | {"r0": times(0.9, few)})
        assert judge(side("old", **rows), new).cells[0].verdict == verdict


def test_wrong_verdicts_are_rare_and_clear_cases_are_decided():
    """At 3 % scatter; `benchmarks/accepting.py` has more launches and lines."""
    random = np.random.default_rng(5)
    wrong = decided = 0
    for _ in range(200):
        old, near, far = (
            list(random.normal(100 * factor, 3, 20)) for factor in (1, 0.94, 0.90)
        )
        wrong += judge(side("old", a=old), side(a=near)).verdict == "PASS"
        decided += judge(side("old", a=old), side(a=far)).verdict == "FAIL"
    assert wrong <= 0.05 * 200
    assert decided >= 0.9 * 200


def test_a_published_number_has_no_launches(tmp_path):
    file = tmp_path / "published.csv"
    text = "cell,throughput,source,status\r\n a ,100,paper,ok\r\nb,,paper,oom\r\n\r\n"
    file.write_bytes(b"\xef\xbb\xbf" + text.encode())
    published = read_side(file)
    assert list(published.cells) == ["a", "b"]
    rates = (LAUNCHES, times(0.9), [100.0] * 3)
    found = [judge(published, side(a=own)).verdict for own in rates]
    assert found == ["PASS", "FAIL", "UNDECIDED"]
    assert judge(side("old", a=LAUNCHES), published).verdict == "UNDECIDED"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cell,value\na,1\n", "no column throughput"),
        *(
            (f"cell,throughput\na,{value}\n", "row 2: throughput: expected samples/s")
            for value in ("fast", "-1", "1_7", "")
        ),
        ("cell,throughput\na,1\nb\n", "row 3: 1 fields: the first row has 2"),
        ("cell,throughput\na,1\nb,1,2\n", "row 3: 3 fields"),
        ("cell,throughput\na,1\na,2\n", "row 3: cell: there is none, or"),
        ("cell,throughput,unit\na,5,words/s\n", "expected samples/s or tokens/s"),
        ("cell;throughput\na;1\n", "no column cell, throughput"),
        ("cell,throughput\na," + "1" * 200_000, "is not CSV in UTF-8"),
        ("", "no column cell, throughput"),
        (b"\xe9", "is not CSV in UTF-8"),
    ],
)
def test_a_damaged_table_is_named(tmp_path, text, said):
    file = tmp_path / "published.csv"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=rf"published\.csv.*{said}"):
        read_side(file)


# The same experiment over dates.


def write_nights(root: Path, *rates: float) -> list[Path]:
    """Runs of nights, the last first; from the third on, torch is another one."""
    files = []
    for night, rate in enumerate(rates, 1):
        software = {"python": "3", "torch": f"2.{13 + (night > 2)}.0", "cuda": None}
        day = {"software": software, **on_day(night)}
        files.insert(0, write_run(root / f"{night}", 500, rate, **day))
    return files


def test_by_date_each_run_is_compared_with_the_one_before(
    tmp_path, cli, compare_json, monkeypatch
):
    monkeypatch.setattr("rankbench.commands._terminal.WIDTH", 140)
    options = (*write_nights(tmp_path, 1000, 1004, 850, 853), "--by", "date")
    found = compare_json(*options, status=3)
    bases = [(Path(c["side"]).name, Path(c["base"]).name) for c in found["cells"][::2]]
    assert bases == [("2", "1"), ("3", "2"), ("4", "3")]
    page = tmp_path / "nights.html"
    out = cli("compare", *options, "--page", page, status=3).out
    rows = [line for line in out.splitlines() if "samples/s" in line]
    # What changed, and the newest run.
    ddp, single = "ddp.gloo.1x2", "single.none.1x1"
    days = [(ddp, "2026-01-03"), (ddp, "2026-01-04"), (single, "2026-01-04")]
    assert [(*line.split()[:2],) for line in rows] == days
    assert "torch: 2.13.0 ->" in rows[0]
    assert "2026-01-03" in Words(page.read_text()).text
    assert DDP["id"] in (tmp_path / "plots/nights.svg").read_text()


def test_a_slowdown_is_news_once(tmp_path, compare_json):
    for third, status in ((800, 1), (1200, 0)):
        nights = write_nights(tmp_path / f"{third}", 1000, 1004, third)
        compare_json(*nights, "--by", "date", "--at-least", "0.9", status=status)
    nights = write_nights(tmp_path, 1000, 800, 804)
    compare_json(*nights, "--by", "date", "--at-least", "0.9")


def test_a_night_without_a_number_is_passed_over(tmp_path, compare_json):
    one, two = write_nights(tmp_path, 1000, 1004)
    layout = write_plan(tmp_path / "3", [DDP, SINGLE])
    write_launch(layout, DDP, status="crashed", reason="it crashed", **on_day(3))
    write_launches(layout, SINGLE, rate=500, **on_day(3))
    sides = [one, two, layout.root]
    found = compare_json(*sides, "--by", "date", status=1)
    assert verdicts(found)[-2:] == ["lost", UNPAIRED]
    last = write_run(tmp_path / "4", 0, 1001, **on_day(4))
    found = compare_json(*sides, last, "--by", "date", status=3)
    assert Path(found["cells"][-1]["base"]).name == "2"


# Cells without a ratio, and other circumstances.


def test_a_cell_that_no_longer_runs_is_a_finding(pair, tmp_path, compare_json):
    layout = write_plan(tmp_path / "broken", [SINGLE, DDP])
    write_launches(layout, SINGLE, rate=801)
    write_launch(layout, DDP, status="crashed", reason="rank 1 ended by SIGSEGV")
    for sides, verdict, status in (
        ((pair[0], layout.root), "lost", 1),
        ((layout.root, pair[0]), "gained", 3),
    ):
        found = compare_json(*sides, status=status)
        assert verdicts(found) == [UNPAIRED, verdict]
        assert verdict == "gained" or "rank 1 ended" in found["cells"][1]["why"]


def test_other_cells_and_definitions_are_named(pair, tmp_path, cli):
    other = plan_cell("single", seed=1)
    layout = write_cells(tmp_path / "other", other, rates=[400])
    out = cli("compare", pair[0], layout.root, status=3).out
    assert f"not in B: {DDP['id']}" in out
    assert "not in A" not in out
    assert "1 changed" in out


def test_rows_of_every_status_are_compared(tmp_path, compare_json):
    for name in "ab":
        layout = write_example(tmp_path / name)
    for path in layout.records.glob("*/*/*/record.json"):
        path.write_text(path.read_text().replace("2026-01-01", "2026-01-02"))
    found = compare_json(tmp_path / "a", tmp_path / "b", status=3)
    assert found["counts"] == {UNPAIRED: 5, "too few launches": 1, "no number": 4}


def test_nothing_in_records_commands_the_terminal_or_the_page(tmp_path, cli):
    script, page = "<script>alert(1)</script>", tmp_path / "page.html"
    software = {"python": "3", "torch": f"\x1b[2J\x1b]0;{script}\x07", "cuda": None}
    old = write_run(tmp_path / "old", 800)
    new = write_run(tmp_path / "new", 801, software=software)
    out = cli("compare", old, new, "--page", page, status=3).out
    assert script in out
    assert not {"\x1b", "\x07"} & {*out}
    assert script not in page.read_text()
    assert script in Words(page.read_text()).text


def test_a_disturbed_launch_is_in_no_number(tmp_path, cli):
    """The number beside a ratio is that of its launches, as in the table."""
    for day, slow in ((1, 1.0), (2, 0.4)):
        layout = write_plan(tmp_path / str(day), [SINGLE, DDP], launches=8)
        for number in range(1, 9):
            turn = {"round": {"seed": 1, "number": number, "position": 1}}
            rate = (800 + number) * (slow if number == 3 else 1)
            for cell, own in ((SINGLE, rate), (DDP, 1500 - number)):
                more = {"wanted": 8, **turn, **on_day(day)}
                write_launch(layout, cell, number, rate=own, **more)
    out = cli("compare", tmp_path / "1", tmp_path / "2", status=3).out
    (line,) = (s for s in out.splitlines() if s.startswith("single"))
    assert " 804.5 (8)  " in line
    assert " 804.7 samples/s (7 of 8)" in line


@pytest.fixture(scope="module")
def odd_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("odd")
    (root / "file.txt").write_text("text")
    (root / "file.json").write_text('{"plan": 1}')
    (root / "broken.json").write_text('{"schema": 2, "cells": {"a": {}}}')
    for name, rates in (("old", (800,)), ("twin", (801,)), ("other", (0, 800))):
        write_run(root / name, *rates)
    write_plan(root / "empty", [SINGLE])
    write_run(root / "odd", 800, started="2026-01-01T00:00:01 and more")
    nan = [float("nan")]
    for name, key, first in (("nan", "throughput", nan), ("untimed", "started", [])):
        path = root / f"{name}.json"
        path.write_bytes(encode_baseline(read_side(root / "old")))
        with edited(path) as stored:
            stored["cells"][SINGLE["id"]][key][0:1] = first
    return root


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("missing old", "missing does not exist"),
        ("old", "old is one side"),
        (". old", "has no plan.json"),
        ("file.txt old", "file.txt is no bundle"),
        ("file.json old", "file.json has baseline schema"),
        *(
            (f"{name}.json old", f"{name}.json is damaged")
            for name in ("broken", "nan", "untimed")
        ),
        ("empty --save-baseline x.json", "no cell has a number"),
        ("odd --save-baseline x.json", "begun must match"),
        (
            "old twin --confidence 95",
            "--confidence: expected at least 0.5 and less than 1, such as 0.95",
        ),
        ("old twin --margin 3", "--margin: expected a share above 0 and below 1"),
        ("old twin --at-least 0", "--at-least: expected a share"),
        (
            "old twin --at-least 90%",
            "--at-least: expected a share above 0 and below 2, such as 0.9",
        ),
        ("old twin --models --tolerance nan", "--tolerance: expected a number"),
        ("old --at-least 0.9", "old is one side"),
        ("empty twin --at-least 1", "no row has a throughput"),
        ("old twin --between image=a,b", "--between: give one SIDE"),
        ("old empty --by date", "does not say when"),
        ("old other", "no cell in common"),
    ],
)
def test_bad_input_is_said_in_words(odd_files, monkeypatch, cli, arguments, says):
    monkeypatch.chdir(odd_files)
    assert says in cli("compare", *arguments.split(), status=2).err
    assert not Path("x.json").exists()
