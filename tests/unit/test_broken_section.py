"""A section that fails leaves the others alone, and its place says so."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from rankbench.cli import main
from rankbench.record import Layout
from rankbench.results.elements.section import Content
from rankbench.results.numbers.result_set import ResultSet
from rankbench.results.sections import load_sections
from unit.synthetic import write_example, write_tables

pytestmark = pytest.mark.unit

BROKEN = "This section could not be made: KeyError."


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = write_example(tmp_path)
    write_tables(layout)
    assert layout.table("csv", "variance").exists()
    return layout


@pytest.fixture
def broken(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """`variance` fails for one cell."""
    old = load_sections()["variance"]

    def make(found: ResultSet) -> Content | None:
        for summary in found.measured:
            if summary.row.cell.topology == "1x4":
                raise KeyError(summary.row.id)
        return old.make(found)

    new = dataclasses.replace(old, make=make)
    monkeypatch.setitem(load_sections(), "variance", new)


@pytest.mark.usefixtures("broken")
def test_the_others_are_written_and_it_says_that_it_failed(
    layout: Layout, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("table", "epochs", "launches"):
        layout.table("csv", name).unlink()
    assert main(["table", "--no-plots", str(layout.root)]) == 0
    for name in ("table", "epochs", "launches"):
        assert layout.table("csv", name).stat().st_size
    title = load_sections()["variance"].title
    assert f"- {title}: {BROKEN}\n" in layout.table("md").read_text()
    page = layout.table("html").read_text()
    assert f">{title}</" in page
    assert BROKEN in page
    # Files of an earlier run must not pass for files of this one.
    assert not list(layout.root.glob("variance.*"))
    said = capsys.readouterr().err
    assert said.startswith("section variance:\nTraceback")
    assert "KeyError: 'ddp.gloo.1x4.convnet.digits'" in said


def test_a_damaged_record_is_no_fault_of_a_section(
    layout: Layout, capsys: pytest.CaptureFixture[str]
) -> None:
    path = layout.launch("ddp.gloo.1x2.convnet.digits", 1, 3) / "steps.npz"
    path.write_bytes(b"")
    assert main(["table", str(layout.root)]) == 2
    assert f"{path} is damaged" in capsys.readouterr().err
