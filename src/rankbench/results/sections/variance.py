"""How much launches scatter, and steps within them; how launches stand to the base."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from rankbench.results.elements.content import Section
from rankbench.results.elements.text import Grid, Text, figures, round_figures
from rankbench.results.numbers.difference import differ
from rankbench.results.numbers.measures import Measures
from rankbench.results.numbers.statistics import spread
from rankbench.results.numbers.summary import Summary

TITLE = "Spread"

ABOUT = (
    "Between: how the throughput of launches scatters; more launches show it, more "
    "steps do not. Within: how the steps of a launch scatter (the slowest rank's time; "
    "median over launches). Both are interquartile ranges over the median. Warm-up: "
    "steps that are left out, the most of any launch: those that the cell asks for, or "
    "more where step times change their level by over 5 % later on. Steady: launches "
    "that end at a level that they kept for half of the timed steps or more. Faster: "
    "of all pairs of a launch of the cell and one of the base of its speedup, the "
    "share in which the cell's is faster (Vargha and Delaney's A); 50 % is no "
    "difference."
)

COLUMNS = (
    "cell",
    "launches",
    "between_pct",
    "within_pct",
    "warmup_steps",
    "steady_launches",
    "base",
    "superiority",
)


def make_frame(summaries: Sequence[Summary]) -> pd.DataFrame:
    """The columns of variance.csv; a row for each cell that is ok."""
    measures = {summary.row.id: summary.measures for summary in summaries}
    rows = [_row(one, measures) for one in summaries if one.measures]
    numbers = ("between_pct", "within_pct", "superiority")
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    return frame.astype(dict.fromkeys(numbers, "float64"))


def show(variance: pd.DataFrame) -> Section | None:
    """The same for readers; nothing where no cell is ok."""
    if not len(variance):
        return None
    columns = {
        "cell": False,
        "between (%)": True,
        "within (%)": True,
        "warm-up (steps)": True,
        "steady": True,
        "faster than the base (%)": True,
    }
    rows = [
        [
            Text(row["cell"]),
            Text(_show(row["between_pct"])),
            Text(_show(row["within_pct"])),
            Text(str(row["warmup_steps"])),
            Text(f"{row['steady_launches']}/{row['launches']}"),
            Text(_show(100 * row["superiority"])),
        ]
        for row in variance.to_dict("records")
    ]
    return Section(
        title=TITLE,
        about=ABOUT,
        files=("variance.csv",),
        grids=[Grid(TITLE, columns, rows)],
    )


def _row(
    summary: Summary, measures: Mapping[str, tuple[Measures, ...]]
) -> dict[str, Any]:
    launches, base = summary.measures, summary.speedup_base
    rates = [one.throughput for one in launches]
    row = {
        "cell": summary.row.id,
        "launches": len(launches),
        "between_pct": _percent(spread(rates)) if len(rates) > 1 else None,
        "within_pct": _percent(np.median([one.step_spread for one in launches])),
        "warmup_steps": max(one.warmup for one in launches),
        "steady_launches": sum(one.steady for one in launches),
    }
    if base and base.id != summary.row.id:
        others = [one.throughput for one in measures[base.id]]
        found = differ(rates, others).superiority
        row |= {"base": base.id, "superiority": round_figures(found)}
    return row


def _percent(share: float) -> float:
    return round_figures(100 * share)


def _show(value: float) -> str:
    return "" if np.isnan(value) else figures(value)
