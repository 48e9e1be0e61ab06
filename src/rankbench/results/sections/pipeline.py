"""Pipelines: the share of a step in which ranks wait, and the least it could be."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankbench.results.elements.section import Content, Section
from rankbench.results.numbers.result_set import ResultSet, Summary
from rankbench.results.numbers.statistics import Estimate, mean


def make(found: ResultSet) -> Content | None:
    """A row for each cell that is a pipeline."""
    rows = list(map(_row, filter(_is_pipeline, found.measured)))
    return Content(rows=rows) if rows else None


def _describe_ranks(summary: Summary) -> list[list[dict[str, Any]]]:
    """What the strategy recorded of itself, by launch and rank."""
    records = summary.counted["record"]
    return [[rank["details"] for rank in r["ranks"]] for r in records]


def _is_pipeline(summary: Summary) -> bool:
    """Whether its ranks have recorded how long they wait."""
    return {"schedule", "microbatches"} <= summary.cell.options.keys() and all(
        "bubble" in rank for ranks in _describe_ranks(summary) for rank in ranks
    )


def _row(summary: Summary) -> dict[str, Any]:
    launches = _describe_ranks(summary)
    ranks = launches[0]
    options = summary.cell.options
    # Share of a step in which a rank waits, mean over the ranks: by launch.
    bubbles = [float(np.mean([rank["bubble"] for rank in own])) for own in launches]
    return {
        "cell": summary.id,
        "schedule": options["schedule"],
        "microbatches": options["microbatches"],
        "ranks": len(ranks),
        "bubble": mean(bubbles),
        "ideal_bubble": Estimate(ranks[0]["ideal_bubble"]),
        "speedup": summary.numbers.get("speedup"),
    }


SECTION = Section(
    name="pipeline",
    title="Pipelines",
    reading=(
        "Bubble: share of a step in which a rank waits, mean over ranks and launches, "
        "from steps after the timed ones. Ideal: (K-1)/(M+K-1) with "
        "K ranks and M microbatches (M times the stages of a rank if they are "
        "interleaved). Stages of unequal length and communication are why a bubble is "
        "larger than the ideal one."
    ),
    order=80,
    make=make,
    columns={
        "cell": (str, "cell"),
        "schedule": (str, "schedule"),
        "microbatches": (int, "microbatches"),
        "ranks": (int, "ranks"),
        "bubble": (Estimate, "bubble"),
        "ideal_bubble": (Estimate, "ideal"),
        "speedup": (Estimate, "speedup"),
    },
)
