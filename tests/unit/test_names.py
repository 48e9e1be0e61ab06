"""Short names of cells."""

from __future__ import annotations

import pytest

from rankbench.results.elements.text import shorten

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("ids", "names", "shared"),
    [
        ([], [], ""),
        (["single.none.1x1.m.d"], ["single.none.1x1.m.d"], ""),
        (
            ["single.none.1x1.m.d", "ddp.gloo.1x2.m.d"],
            ["single.none.1x1", "ddp.gloo.1x2"],
            "m.d",
        ),
        (
            ["single.none.1x1.m.d", "ddp.gloo.1x2.m.d.bucket_mb=1"],
            ["single.none.1x1", "ddp.gloo.1x2.bucket_mb=1"],
            "m.d",
        ),
        (
            ["a.b.1x1.m.d.lr=0.1", "a.b.1x1.n.d.lr=0.1"],
            ["a.b.1x1.m", "a.b.1x1.n"],
            "d.lr=0.1",
        ),
        # A decimal point is not the end of a part.
        (
            ["a.b.1x1.m.d.lr=0.5", "a.b.1x1.m.d.lr=1.5"],
            ["a.b.1x1.lr=0.5", "a.b.1x1.lr=1.5"],
            "m.d",
        ),
        (
            ["a.b.1x1.m.d.lr=1e-05.seed=1", "a.b.1x2.m.d.lr=1e-05.seed=2"],
            ["a.b.1x1.seed=1", "a.b.1x2.seed=2"],
            "m.d.lr=1e-05",
        ),
    ],
)
def test_parts_that_all_cells_share_are_left_out(ids, names, shared):
    assert shorten(ids) == (dict(zip(ids, names, strict=True)), shared)
