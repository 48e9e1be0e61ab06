"""Filters: `only` and `exclude`."""

from __future__ import annotations

import pytest

from factories import make_cell
from rankbench.cell import spell_value
from rankbench.matrix.selection import Filter, spell

pytestmark = pytest.mark.unit

CELLS = [
    make_cell(strategy="single", backend="none"),
    make_cell(options={"bucket_mb": 1, "static_graph": True}),
    make_cell(
        options={"bucket_mb": 25, "static_graph": False},
        topology="1x2",
        model_options={"mib": 4},
    ),
]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("strategy=ddp", [False, True, True]),
        ("strategy=ddp,single", [True, True, True]),
        ("strategy=ddp topology=1x1", [False, True, False]),
        ("  topology=1x2\n", [False, False, True]),
        ("bucket_mb=1,25", [False, True, True]),
        ("static_graph=true", [False, True, False]),
        ("mib=4", [False, False, True]),
        ("steps=null", [True, True, True]),
        ("learning_rate=0.01 pin_memory=false", [True, True, True]),
    ],
)
def test_accepts(text, kept):
    wanted = Filter.parse(text)
    wanted.check(CELLS)
    assert [wanted.accepts(cell) for cell in CELLS] == kept


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "an empty filter"),
        ("  ", "an empty filter"),
        ("strategy", "'strategy' is not key=value,value"),
        ("strategy=", "'strategy=' is not key=value"),
        ("=ddp", "'=ddp' is not key=value"),
        ("strategy=ddp,", "'strategy=ddp,' is not key=value"),
        ("strategy = ddp", "'strategy' is not key=value"),
        ("seed=1 seed=2", "'seed' appears twice"),
    ],
)
def test_parse_refuses(text, complaint):
    with pytest.raises(ValueError, match=complaint):
        Filter.parse(text)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("bucket_bm=1", "unknown key 'bucket_bm'; did you mean 'bucket_mb'"),
        ("options=x", "unknown key 'options'"),
        ("model_options=x", "unknown key 'model_options'"),
        ("topology=1x3", r"no cell has topology=1x3 \(there are 1x1, 1x2\)"),
        ("strategy=ddp,sinlge", "strategy=sinlge .*did you mean 'single'"),
        ("bucket_mb=2", r"no cell has bucket_mb=2 \(there are 1, 25\)"),
    ],
)
def test_check_refuses(text, complaint):
    with pytest.raises(ValueError, match=complaint):
        Filter.parse(text).check(CELLS)


def test_values_are_spelled_as_in_yaml():
    values = (None, True, False, 1e-6, 25)
    assert [*map(spell_value, values)] == ["null", "true", "false", "1e-06", "25"]
    # A key that is missing is another thing than null.
    assert spell(CELLS[0], "steps") == "null"
    assert spell(CELLS[0], "bucket_mb") is None
