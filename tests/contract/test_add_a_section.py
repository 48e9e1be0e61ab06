"""The section that docs/extending.md shows."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from rankbench.results.numbers.result_set import read
from rankbench.results.sections import collect
from unit.synthetic import write_example

PAGE = Path(__file__).resolve().parents[2] / "docs" / "extending.md"

pytestmark = pytest.mark.contract


def test_the_example_is_a_section(tmp_path):
    _, _, part = PAGE.read_text().partition("## A section of the results")
    block = re.search(r"```python\n(.*?)```", part, re.DOTALL)
    assert block
    file = tmp_path / "slow_steps.py"
    file.write_text(block[1])
    spec = importlib.util.spec_from_file_location("slow_steps", file)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    section = collect([module])["slow-steps"]
    found = read(write_example(tmp_path / "results"))
    content = section.make(found)
    assert content
    frame = section.frame(content)
    assert list(frame.columns) == ["cell", "p95_ms", "p95_ms_lo", "p95_ms_hi"]
    assert len(frame) == len(found.measured) > 0
    (grid,) = section.grids(content)
    assert list(grid.columns) == ["cell", "p95 (ms)"]
