"""Filters: `only` and `exclude`."""

from __future__ import annotations

import pytest

from factories import make_cell, read_pairs
from rankbench.cell import spell_value
from rankbench.matrix.selection import find_matching

pytestmark = pytest.mark.unit

CELLS = {
    "alone": make_cell(strategy="single", backend="none"),
    "small": make_cell(options={"bucket_mb": 1, "static_graph": True}),
    "large": make_cell(
        options={"bucket_mb": 25, "static_graph": False},
        topology="1x2",
        model_options={"mib": 4},
    ),
}


@pytest.mark.parametrize(("text", "found"), read_pairs("filters.txt"))
def test_accepts(text, found):
    assert find_matching(CELLS, text) == {*found.split()}


@pytest.mark.parametrize(("text", "complaint"), read_pairs("refused_filters.txt"))
def test_refuses(text, complaint):
    with pytest.raises(ValueError, match=complaint):
        find_matching(CELLS, text.removeprefix("empty"))


def test_values_are_spelled_as_in_yaml():
    values = (None, True, False, 1e-6, 25)
    assert [*map(spell_value, values)] == ["null", "true", "false", "1e-06", "25"]
