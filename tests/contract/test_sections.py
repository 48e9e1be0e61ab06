"""What every section of the results must keep."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from rankbench.record import PLOTS
from rankbench.results.elements.section import Section
from rankbench.results.numbers.result_set import ResultSet, read
from rankbench.results.sections import collect, load_sections
from unit.synthetic import make_cell, plan_cell, write_example, write_plan

pytestmark = pytest.mark.contract

FOLDER = Path(__file__).resolve().parents[2] / "src/rankbench/results/sections"


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> ResultSet:
    """Cells of every status."""
    return read(write_example(tmp_path_factory.mktemp("example")))


@pytest.fixture(scope="module")
def nothing(tmp_path_factory: pytest.TempPathFactory) -> ResultSet:
    """A plan of which nothing was measured."""
    cells = [plan_cell(make_cell("single")), plan_cell(make_cell("ddp", "1x2"))]
    return read(write_plan(tmp_path_factory.mktemp("nothing"), cells))


def test_every_file_is_a_section():
    files = [path for path in FOLDER.glob("*.py") if not path.name.startswith("_")]
    assert len(load_sections()) == len(files) > 10
    # Their places differ.
    assert len({section.order for section in load_sections().values()}) == len(files)


def test_a_file_without_a_declaration_is_named():
    module = ModuleType("empty")
    module.__file__ = "sections/empty.py"
    with pytest.raises(TypeError, match=r"sections/empty\.py: expected SECTION"):
        collect([module])


@pytest.mark.parametrize("name", list(load_sections()))
def test_a_section_keeps_its_declaration(name, example, nothing):
    section = load_sections()[name]
    assert isinstance(section, Section)
    assert section.name == name
    assert section.title
    assert section.reading or name == "table"
    assert section.reading == " ".join(section.reading.split())
    for found in (example, nothing):
        try:
            content = section.make(found)
        except Exception as error:
            pytest.fail(f"{name}: {error!r}")
        if content is None:
            continue
        section.frame(content)
        for grid in section.grids(content):
            assert {len(row) for row in grid.rows} <= {len(grid.columns)}
        for drawing in content.drawings:
            assert drawing.question.endswith("?")


def test_plots_that_are_always_there(nothing):
    contents = [section.make(nothing) for section in load_sections().values()]
    drawn = [d.name for content in contents if content for d in content.drawings]
    assert tuple(drawn) == PLOTS
