"""How long the ranks of a pipeline wait for each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rankbench.record import Record
from rankbench.results.numbers.summary import Summary


def find_pipelines(summaries: Sequence[Summary]) -> list[Summary]:
    """Rows whose ranks have recorded how long they wait."""
    return [s for s in summaries if s.measures and _is_pipeline(s)]


def bubbles(summary: Summary) -> list[float]:
    """Share of a step in which a rank waits, 0 to 1, mean over the ranks: by launch."""
    return [
        float(np.mean([rank["bubble"] for rank in ranks]))
        for ranks in rank_details(summary)
    ]


def rank_details(summary: Summary) -> list[list[Record]]:
    """What the strategy recorded of itself, by launch and rank."""
    records = [launch.record for launch in summary.counted_launches]
    return [[rank.get("details", {}) for rank in r["ranks"]] for r in records]


def _is_pipeline(summary: Summary) -> bool:
    return {"schedule", "microbatches"} <= summary.row.cell.options.keys() and all(
        "bubble" in rank for ranks in rank_details(summary) for rank in ranks
    )
