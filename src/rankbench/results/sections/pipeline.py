"""Pipelines: the share of a step in which ranks wait, and what it would be at best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from rankbench.record import Record
from rankbench.results.elements.content import Section
from rankbench.results.elements.notes import Note
from rankbench.results.elements.text import Grid, Text, round_figures, show_estimate
from rankbench.results.numbers.statistics import Estimate, median
from rankbench.results.numbers.summary import Summary

ABOUT = Note(
    "bubble",
    "share of a step in which a rank has nothing to do: the mean over the ranks, the "
    "median over the launches, from steps after the timed ones. ideal: (K-1)/(M+K-1) "
    "with K ranks and M microbatches (M times the stages of a rank, if interleaved). "
    "What is above it are stages that take unequal time, and communication.",
)

TITLE = "Pipelines"
PLOTTED = "Speedup against microbatches: more of them shorten the bubble."

_WORDS = ("cell", "schedule", "microbatches", "ranks")
_NUMBERS = {"bubble": "bubble", "ideal_bubble": "ideal", "speedup": "speedup"}


def find_pipelines(summaries: Sequence[Summary]) -> list[Summary]:
    """Rows whose ranks have told how long they wait."""
    return [s for s in summaries if s.measures and _tells(s)]


def _tells(summary: Summary) -> bool:
    return {"schedule", "microbatches"} <= summary.row.cell.options.keys() and all(
        "bubble" in rank for ranks in _details(summary) for rank in ranks
    )


def show(pipelines: Sequence[Summary], *, has_plot: bool = False) -> Section | None:
    """A row for each of them; nothing where there are none.

    has_plot: whether any of them differ in microbatches alone.
    """
    if not pipelines:
        return None
    columns = dict.fromkeys(_WORDS, False) | dict.fromkeys(_NUMBERS.values(), True)
    rows = []
    for summary in pipelines:
        numbers = _estimate(summary)
        words = [Text(str(word)) for word in _describe(summary).values()]
        rows.append([*words, *(show_estimate(numbers.get(name)) for name in _NUMBERS)])
    return Section(
        title=TITLE,
        files=("pipeline.csv",),
        plots=[("microbatches", PLOTTED)] if has_plot else [],
        grids=[Grid(TITLE, columns, rows)],
        notes=[ABOUT],
    )


def make_frame(pipelines: Sequence[Summary]) -> pd.DataFrame:
    """The columns of pipeline.csv."""
    ends = ("", "_lo", "_hi")
    columns = [f"{name}{end}" for name in _NUMBERS for end in ends]
    lines: list[dict[str, Any]] = []
    for summary in pipelines:
        line = _describe(summary)
        for name, number in _estimate(summary).items():
            for end, value in zip(
                ends, (number.value, number.low, number.high), strict=True
            ):
                line[f"{name}{end}"] = None if value is None else round_figures(value)
        lines.append(line)
    frame = pd.DataFrame(lines, columns=[*_WORDS, *columns])
    return frame.astype(dict.fromkeys(columns, "float64"))


def _describe(summary: Summary) -> dict[str, Any]:
    ranks = _details(summary)[0]
    options = summary.row.cell.options
    values = (summary.row.id, options["schedule"], options["microbatches"], len(ranks))
    return dict(zip(_WORDS, values, strict=True))


def _estimate(summary: Summary) -> dict[str, Estimate]:
    launches = _details(summary)
    bubbles = [sum(rank["bubble"] for rank in ranks) / len(ranks) for ranks in launches]
    numbers = {
        "bubble": median(bubbles),
        "ideal_bubble": Estimate(launches[0][0]["ideal_bubble"]),
    }
    if "speedup" in summary.numbers:
        numbers["speedup"] = summary.numbers["speedup"]
    return numbers


def _details(summary: Summary) -> list[list[Record]]:
    """What the strategy told, by launch and rank."""
    records = [launch.record for launch in summary.row.launches]
    return [[rank.get("details", {}) for rank in r["ranks"]] for r in records]
