"""How much launches and steps scatter, and how launches compare to the base."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rankbench.results.elements.section import Content, Row, Section, show_value
from rankbench.results.elements.text import Text
from rankbench.results.numbers.measures import Measures
from rankbench.results.numbers.result_set import ResultSet
from rankbench.results.numbers.statistics import spread
from rankbench.results.numbers.summary import Summary


def make(found: ResultSet) -> Content | None:
    """A row for each cell that is ok."""
    measures = {summary.row.id: summary.measures for summary in found.summaries}
    rows = [_row(one, measures) for one in found.measured]
    return Content(rows=rows) if rows else None


def _row(
    summary: Summary, measures: Mapping[str, tuple[Measures, ...]]
) -> dict[str, Any]:
    launches, base = summary.measures, summary.speedup_base
    rates = [one.throughput for one in launches]
    within = float(np.median([one.step_spread for one in launches]))
    row = {
        "cell": summary.row.id,
        "launches": len(launches),
        "between_pct": 100 * spread(rates) if len(rates) > 1 else None,
        "within_pct": 100 * within,
        "warmup_steps": max(one.warmup for one in launches),
        "steady_launches": sum(one.steady for one in launches),
    }
    if base and base.id != summary.row.id:
        others = [one.throughput for one in measures[base.id]]
        wins = np.greater.outer(rates, others).mean()
        superiority = wins + np.equal.outer(rates, others).mean() / 2
        row |= {"base": base.id, "superiority": superiority}
    return row


def _show_steady(row: Row) -> Text:
    return Text(f"{row['steady_launches']}/{row['launches']}")


def _show_superiority(row: Row) -> Text:
    return show_value(100 * row["superiority"] if "superiority" in row else None)


SECTION = Section(
    name="variance",
    title="Scatter of launches and steps",
    reading=(
        "Between: how the throughput of launches scatters. More launches show it, more "
        "steps do not. Within: how the steps of a launch scatter (time of the slowest "
        "rank, median over launches). Both are interquartile ranges over the median. "
        "Warm-up: the most steps that any launch leaves out: those that the cell asks "
        "for, or more if step times later change their level by over 5 %. Steady: "
        "launches that end at a level which they kept for half of the timed steps or "
        "more. Faster: of all pairs of a launch of the cell and one of the base of its "
        "speedup, the share in which the cell is faster (Vargha and Delaney's A). 50 % "
        "is no difference."
    ),
    order=40,
    make=make,
    columns={
        "cell": (str, "cell"),
        "launches": int,
        "between_pct": (float, "between (%)"),
        "within_pct": (float, "within (%)"),
        "warmup_steps": (int, "warm-up (steps)"),
        "steady_launches": (int, "steady", _show_steady),
        "base": str,
        "superiority": (float, "faster than the base (%)", _show_superiority),
    },
)
