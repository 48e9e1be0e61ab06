"""What a study's source published, joined to the cells that repeat it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rankbench.matrix.layers import Block
from rankbench.matrix.schema import did_you_mean

# Of a published row; everything else is a number.
_WORDS = ("label", "note")


def join_rows(block: Block, cells: Sequence[str]) -> list[dict[str, Any]]:
    """The published rows of a block, each with the id of the cell that repeats it.

    Args:
        block: a sweep.
        cells: the ids of its cells.

    Raises:
        ValueError: there are rows, but not one cell that they could belong to.
    """
    if block.published and len(cells) != 1:
        raise ValueError(
            f"published: belongs to one cell, this block has {len(cells)}: "
            f"{', '.join(cells)}"
        )
    return [{**row, "cell": cells[0]} for row in block.published]


def make_study(
    source: Mapping[str, Any] | None,
    rows: Sequence[Mapping[str, Any]],
    cells: Mapping[str, Any],
) -> dict[str, Any] | None:
    """Source and published rows as the plan holds them; None without a source.

    Raises:
        ValueError: rows without a source, a label twice, a cell that is excluded, or
            numbers without a row that they are compared with.
    """
    if source is None:
        if rows:
            raise ValueError("the key 'source' is missing: whose are the numbers?")
        return None
    labels = [row["label"] for row in rows]
    for row in rows:
        if labels.count(row["label"]) > 1:
            raise ValueError(f"published: label {row['label']!r} stands twice")
        if row["cell"] not in cells:
            raise ValueError(f"exclude: {row['cell']} has published numbers")
    base = source.get("base")
    if base is not None and base not in labels:
        raise ValueError(
            f"source: base: no published row has the label {base!r}"
            f"{did_you_mean(base, labels)}"
        )
    if base is None and any(row.keys() - {*_WORDS, "cell"} for row in rows):
        raise ValueError(
            "source: the key 'base' is missing: the label of the published row that "
            "the others are compared with"
        )
    return {"source": dict(source), "rows": [dict(row) for row in rows]}
