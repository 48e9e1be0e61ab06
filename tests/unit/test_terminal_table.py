"""The results table on a terminal."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from rankbench.commands._terminal import describe, print_results, show_value
from rankbench.record import Layout

pytestmark = pytest.mark.unit

EXAMPLE = Path(__file__).resolve().parents[2] / "docs/example"


def read_example() -> list[dict[str, str]]:
    with open(EXAMPLE / "table.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_the_example_fits_on_a_terminal(capsys, monkeypatch):
    monkeypatch.chdir(EXAMPLE)
    print_results(Layout(Path()))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 120
    assert lines[0].startswith("WHAT    convnet, digits")
    assert "quickstart: convnet.digits.batch_size=32" in map(str.strip, lines)
    measured = [row for row in read_example() if row["status"] == "ok"]
    assert len(measured) >= 4
    for row in measured:
        short = row["cell"].replace(".convnet.digits.batch_size=32", "")
        (line,) = (line for line in lines if line.startswith(f"{short} "))
        for column in ("throughput", "efficiency"):
            assert f" {show_value(row, column)} " in f"{line} "
        assert " [" in show_value(row, "throughput")
    reasons = {row["reason"] for row in read_example()} - {""}
    assert sum(line.startswith("unsupported: ") for line in lines) == len(reasons)
    assert lines[-2] == "files: table.md table.html table.csv table.tex"
    assert lines[-1] == "plots: plots"


@pytest.mark.parametrize(
    ("width", "columns"),
    [(86, ["samples/s", "marks"]), (112, ["samples/s", "marks", "efficiency"])],
)
def test_a_narrow_terminal_shows_fewer_columns(width, columns):
    # All that is shown is as wide as this, whatever the example measured.
    texts = {"efficiency_verdict": "n.s.", "marks": "drifting"}
    texts |= {"throughput_lo": "2.7451", "throughput_hi": "3.1153"}
    texts |= {"throughput": "2.9231", "per_device": "1.4615"}
    texts |= {"efficiency": "0.5103", "cell": f"{'n' * 34}.gloo.1x2"}
    texts |= {"efficiency_lo": "0.4692", "efficiency_hi": "0.5541"}
    rows = [row | texts for row in read_example() if row["status"] == "ok"]
    table = describe(rows, width)[0]
    assert isinstance(table, Table)
    console = Console(width=width)
    shown = [column.header for column in table.columns]
    assert shown == ["cell", *columns]
    assert console.measure(table).maximum <= width


def test_there_is_no_table_before_the_first_run(tmp_path, capsys):
    print_results(Layout(tmp_path))
    assert "no table yet" in capsys.readouterr().out


def test_nothing_measured_leaves_the_reasons():
    row = {"experiment": "x", "cell": "a.b.1x1.m.d", "status": "oom", "reason": "full"}
    (part,) = describe([row])
    console = Console(width=80)
    with console.capture() as captured:
        console.print(part)
    assert captured.get() == "oom: a.b.1x1.m.d: full\n"


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (("", "", ""), ""),
        (("1183.44", "", ""), "1183"),
        (("1183.44", "1010.2", "1268"), "1180 [1010, 1270]"),
        (("0.9722", "0.9722", "0.9722"), "0.9722"),
    ],
)
def test_values(values, text):
    row = dict(zip(("x", "x_lo", "x_hi"), values, strict=True))
    assert show_value(row, "x") == text
    if text:
        assert show_value({**row, "x_verdict": "n.s."}, "x") == f"{text} n.s."
