"""Filters: `only` and `exclude`."""

from __future__ import annotations

import pytest

from factories import make_cell
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


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("strategy=ddp", "small large"),
        ("strategy=ddp,single", "alone small large"),
        ("strategy=ddp topology=1x1", "small"),
        ("  topology=1x2\n", "large"),
        ("bucket_mb=1,25", "small large"),
        ("static_graph=true", "small"),
        ("mib=4", "large"),
        ("steps=null", "alone small large"),
        ("learning_rate=0.01 pin_memory=false", "alone small large"),
    ],
)
def test_accepts(text, found):
    assert find_matching(CELLS, text) == {*found.split()}


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
        ("steps=null steps=null", "'steps' appears twice"),
        ("bucket_bm=1", "unknown key 'bucket_bm'; did you mean 'bucket_mb'"),
        ("options=x", "unknown key 'options'"),
        ("model_options=x", "unknown key 'model_options'"),
        ("topology=1x3", r"no cell has topology=1x3 \(there are 1x1, 1x2\)"),
        ("strategy=ddp,sinlge", "strategy=sinlge .*did you mean 'single'"),
        ("bucket_mb=2", r"no cell has bucket_mb=2 \(there are 1, 25\)"),
        ("strategy=single mib=4", "no cell matches 'strategy=single mib=4'"),
    ],
)
def test_refuses(text, complaint):
    with pytest.raises(ValueError, match=complaint):
        find_matching(CELLS, text)


def test_values_are_spelled_as_in_yaml():
    values = (None, True, False, 1e-6, 25)
    assert [*map(spell_value, values)] == ["null", "true", "false", "1e-06", "25"]
