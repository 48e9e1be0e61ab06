"""Joins the published rows of a study to the cells that repeat them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rankbench.matrix.layers import Block
from rankbench.matrix.schema import did_you_mean

# Keys of a published row that are text; all others are numbers.
_WORDS = ("label", "note")


def join_rows(block: Block, cells: Sequence[str]) -> list[dict[str, Any]]:
    """The published rows of a block, each with the id of the cell that repeats it.

    Args:
        block: a sweep.
        cells: the ids of its cells.

    Raises:
        ValueError: the block has rows, but not exactly one cell.
    """
    if block.published and len(cells) != 1:
        raise ValueError(
            f"published: needs a block with one cell, this block has {len(cells)}: "
            f"{', '.join(cells)}"
        )
    return [{**row, "cell": cells[0]} for row in block.published]


def make_study(
    source: Mapping[str, Any] | None,
    rows: Sequence[Mapping[str, Any]],
    cells: Mapping[str, Any],
) -> dict[str, Any] | None:
    """The source and its published rows, for the plan; None without a source.

    Raises:
        ValueError: there are rows without a source, a label appears twice, the cell of
            a row is excluded, or no row is named as the base of the comparison.
    """
    if source is None:
        if rows:
            raise ValueError(
                "the key 'source' is missing: it says where the published rows are from"
            )
        return None
    labels = [row["label"] for row in rows]
    for row in rows:
        if labels.count(row["label"]) > 1:
            raise ValueError(f"published: label {row['label']!r} appears twice")
        if row["cell"] not in cells:
            raise ValueError(f"exclude: {row['cell']} has published rows: keep it")
    base = source.get("base")
    if base is not None and base not in labels:
        raise ValueError(
            f"source: base: no published row has the label {base!r}"
            f"{did_you_mean(base, labels)}"
        )
    if base is None and any(row.keys() - {*_WORDS, "cell"} for row in rows):
        raise ValueError(
            "source: the key 'base' is missing: it is the label of the published row "
            "that the others are compared with"
        )
    return {"source": dict(source), "rows": [dict(row) for row in rows]}
