"""The results table on a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankbench.commands._terminal import print_grid, print_results
from rankbench.record import Layout
from rankbench.results.elements.text import Grid, Text
from rankbench.results.numbers.result_set import read
from unit.synthetic import write_example, write_tables

pytestmark = pytest.mark.unit

MEASURED = {"strategy": False, "samples/s": True, "efficiency": True, "note": False}


def test_answer_table_and_files_fit_on_a_terminal(tmp_path, capsys, monkeypatch):
    layout = write_example(tmp_path)
    write_tables(layout)
    monkeypatch.chdir(tmp_path)
    print_results(Layout(Path()))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0].split()[:3] == ["WHAT", "convnet,", "digits,"]
    assert "quickstart: convnet.digits" in lines
    shown = [line.split()[0] for line in lines if line]
    assert {one.cell.strategy for one in read(layout).measured} <= {*shown}
    assert "Cells without numbers" in lines
    assert lines[-1] == "files in .: report.html answer.md table.md table.csv"


@pytest.mark.parametrize(
    ("width", "headings"),
    [(39, "strategy  note"), (55, "strategy  samples/s  note"), (80, None)],
)
def test_a_narrow_terminal_shows_fewer_numbers(capsys, monkeypatch, width, headings):
    monkeypatch.setattr("rankbench.commands._terminal.WIDTH", width)
    fields = (
        Text("n" * 24),
        Text("2.92", "[2.74, 3.11]"),
        Text("0.51"),
        Text("drifting"),
    )
    print_grid(Grid("Cells", MEASURED, [fields]), {})
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    wanted = headings or "strategy  samples/s  efficiency  note"
    assert lines[0].split() == wanted.split()


def test_there_is_no_table_before_the_first_run(tmp_path, capsys):
    print_results(Layout(tmp_path))
    assert "no table yet" in capsys.readouterr().out


def test_words_of_logs_are_no_markup(capsys):
    reason = "rank 0: [/third_party/gloo/pair.cc:537] reset :warning: [bold]"
    print_grid(Grid("x", {"reason": False}, [[Text(reason)]]), {}, title="[/x]")
    said = capsys.readouterr().out
    assert reason in said
    assert "[/x]" in said
