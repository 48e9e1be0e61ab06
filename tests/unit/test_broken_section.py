"""A section that fails leaves the others alone, and its place says so."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankbench.cli import main
from rankbench.record import Layout
from rankbench.results.elements.section import Content
from rankbench.results.numbers.result_set import ResultSet
from rankbench.results.sections import load_sections
from unit.synthetic import edited, write_example, write_rows, write_tables

pytestmark = pytest.mark.unit

BROKEN = "This section could not be made: KeyError."
ODD = "ddp.gloo.1x4.convnet.digits"


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = write_example(tmp_path)
    write_tables(layout)
    assert layout.section("phases").exists()
    return layout


def break_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    old = load_sections()["phases"]

    def make(_: ResultSet) -> Content | None:
        raise KeyError(ODD)

    monkeypatch.setitem(load_sections(), "phases", dataclasses.replace(old, make=make))


def test_the_others_are_written_and_it_says_that_it_failed(layout, monkeypatch, capsys):
    break_phases(monkeypatch)
    others = layout.table("csv"), layout.section("diagnostics")
    for path in others:
        path.unlink()
    assert main(["table", "--no-plots", str(layout.root)]) == 0
    for path in others:
        assert path.stat().st_size
    title = load_sections()["phases"].title
    page = layout.report.read_text()
    assert f">{title}</" in page
    assert BROKEN in page
    # Files of an earlier run must not pass for files of this one.
    assert not layout.section("phases").exists()
    said = capsys.readouterr().err
    assert said.startswith("section phases:\nTraceback")
    assert f"KeyError: '{ODD}'" in said


Change = Callable[[dict[str, Any]], object]

# Records that the schema allows, and that no launch of the others looks like.
ODD_RECORDS: dict[str, Change] = {
    **{
        f"no {name}": lambda record, name=name: record.pop(name, None)
        for name in (
            *("loss", "gate", "started", "ended", "code", "launcher"),
            *("marks", "devices", "transport", "collectives", "energy", "parting"),
        )
    },
    **{
        f"{name} is {value!r}": lambda record, name=name, value=value: record.update(
            {name: value}
        )
        for name, value in (
            *(("gate", None), ("image", None), ("accuracy", None)),
            *(("loss", {"first": None, "last": None}), ("devices", [])),
            *(("reason", "none"), ("launcher", {}), ("collectives", [])),
        )
    },
    **{
        f"rank 0: {name} is {value!r}": lambda record, name=name, value=value: record[
            "ranks"
        ][0].update({name: value})
        for name, value in (
            *(("host", "elsewhere"), ("epochs_s", []), ("epochs_s", None)),
            *(("cpu_utilisation", None), ("loader_utilisation", 1e9)),
            ("details", {"routed": {"block1": []}}),
            ("details", {"routed": {"block1": [0, 0]}}),
        )
    },
    "no GPU that has a name": lambda record: record["hosts"][0].update(gpus=[]),
    "no phase known": lambda record: record.update(
        phases=[f"phase {n}" for n in range(len(record["phases"]))]
    ),
}


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory):
    """Rows of the example, none of whose records is odd."""
    return write_rows(write_example(tmp_path_factory.mktemp("before")))


@pytest.mark.parametrize("odd", ODD_RECORDS)
def test_an_odd_record_does_not_take_down_the_others(tmp_path, before, odd):
    layout = write_example(tmp_path)
    cell = "ddp.gloo.1x2.convnet.digits"
    with edited(layout.launch(cell, 1, 3) / "record.json") as record:
        ODD_RECORDS[odd](record)
    after = write_rows(layout)
    assert after.keys() == before.keys()
    for name, row in after.items():
        assert row == before[name] or name == cell
    assert after[cell]["throughput"] == before[cell]["throughput"]
    assert layout.section("diagnostics").stat().st_size
    # No section failed as a whole.
    assert "could not be made" not in layout.report.read_text()
