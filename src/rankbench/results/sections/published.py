"""Published numbers beside measured ones, each against its own side's base."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from rankbench.results.elements.content import Section
from rankbench.results.elements.notes import Note
from rankbench.results.elements.text import Grid, Text, figures, show_estimate
from rankbench.results.numbers.statistics import Estimate, median, ratio_of_medians
from rankbench.results.numbers.summary import Summary
from rankbench.results.read.study import Published, Study

# What a source may have published: its heading, and whether a ratio to the base says
# more than the value itself.
QUANTITIES = {
    "throughput": ("throughput (samples/s)", True),
    "step_ms": ("step (ms)", True),
    "epoch_s": ("epoch (s)", True),
    "total_s": ("whole training (s)", True),
    "load_ms": ("loading, of a step (ms)", True),
    "update_ms": ("the rest of a step (ms)", True),
    "memory_mib": ("memory (MiB)", True),
    "accuracy": ("accuracy", False),
}
COLUMNS = (
    *("label", "cell", "status", "reason", "marks", "quantity"),
    *("measured", "measured_lo", "measured_hi", "published", "published_each"),
    *("ratio", "ratio_lo", "ratio_hi", "published_ratio", "base", "note"),
)
_FIGURES = (
    *("measured", "measured_lo", "measured_hi", "published"),
    *("ratio", "ratio_lo", "ratio_hi", "published_ratio"),
)
READING = (
    "The published numbers are another machine's, and often another software's: "
    "compare no absolute value across the two sides. Compare the ratios: each side is "
    "divided by its own base, so that the machine cancels out as far as it can."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One published number and what was measured in its place.

    Attributes:
        row: of the source.
        summary: of the cell that repeats it.
        quantity: a key of `QUANTITIES`.
        theirs: as published; the largest where there is one for each device.
        ours: None unless the cell is ok and was measured for this.
        our_ratio, their_ratio: over the base of the same side; None without one.
    """

    row: Published
    summary: Summary
    quantity: str
    theirs: float
    ours: Estimate | None
    our_ratio: Estimate | None
    their_ratio: float | None


def compare(study: Study, summaries: Sequence[Summary]) -> list[Comparison]:
    """Every published number beside its cell's, in the order of the source."""
    by_cell = {summary.row.id: summary for summary in summaries}
    base = study.base
    return [
        _compare(row, name, base, by_cell)
        for row in study.rows
        for name in QUANTITIES
        if name in row.numbers
    ]


def _compare(
    row: Published, name: str, base: Published | None, cells: Mapping[str, Summary]
) -> Comparison:
    theirs, values = max(row.numbers[name]), _values(cells[row.cell], name)
    our_ratio = their_ratio = None
    if base and QUANTITIES[name][1]:
        below = _values(cells[base.cell], name)
        if values and below and row.cell == base.cell:
            our_ratio = Estimate(1.0)
        elif values and below:
            our_ratio = ratio_of_medians(values, below)
        if name in base.numbers:
            their_ratio = theirs / max(base.numbers[name])
    return Comparison(
        row=row,
        summary=cells[row.cell],
        quantity=name,
        theirs=theirs,
        ours=median(values) if values else None,
        our_ratio=our_ratio,
        their_ratio=their_ratio,
    )


def _values(summary: Summary, name: str) -> list[float]:
    """Of each launch; none where the cell is not ok, or was not evaluated."""
    found = [getattr(launch, name) for launch in summary.measures]
    return [value for value in found if value is not None]


def show(study: Study, summaries: Sequence[Summary]) -> Section:
    """The study as documents show it: about it, its tables, remarks on its rows."""
    comparisons = compare(study, summaries)
    by_cell = {summary.row.id: summary for summary in summaries}
    grids = [_show_rows(study, by_cell)] if study.rows else []
    for name in QUANTITIES:
        found = [one for one in comparisons if one.quantity == name]
        if found:
            grids.append(_show_quantity(name, found))
    about = [Note(key, text) for key, text in study.source.items() if key != "base"]
    if study.override:
        text = f"{study.override}: what was measured is smaller than what was published"
        about.append(Note("override", f"{text}; the cells say how."))
    if study.base:
        about.append(Note("how to read", READING))
        about.append(Note("base", f"{study.base.label}: {study.base.cell}"))
    notes = [Note(row.label, row.note) for row in study.rows if row.note]
    return Section(
        title="Published numbers",
        files=("published.csv",),
        before=about,
        grids=grids,
        notes=notes,
    )


def _show_rows(study: Study, by_cell: Mapping[str, Summary]) -> Grid:
    columns = {"published row": False, "cell": False, "status": False, "why": False}
    rows = []
    for row in study.rows:
        summary = by_cell[row.cell]
        why = summary.row.reason or ", ".join(summary.marks)
        rows.append([Text(t) for t in (row.label, row.cell, summary.row.status, why)])
    return Grid("rows", columns, rows)


def _show_quantity(name: str, found: Sequence[Comparison]) -> Grid:
    title, has_ratio = QUANTITIES[name]
    columns = {"published row": False, "measured": True, "published": True}
    if has_ratio:
        columns |= {"measured / its base": True, "published / its base": True}
    rows = []
    for one in found:
        each = " / ".join(figures(value) for value in one.row.numbers[name])
        texts = [Text(one.row.label), show_estimate(one.ours), Text(each)]
        if has_ratio:
            theirs = None if one.their_ratio is None else Estimate(one.their_ratio)
            texts += [show_estimate(one.our_ratio), show_estimate(theirs)]
        rows.append(texts)
    return Grid(title, columns, rows)


def make_frame(study: Study, summaries: Sequence[Summary]) -> pd.DataFrame:
    """The columns of published.csv: a line for each number, or for a row without."""
    by_cell = {summary.row.id: summary for summary in summaries}
    base = study.base.label if study.base else None
    lines: list[dict[str, Any]] = []
    for row in study.rows:
        if not row.numbers:
            lines.append(_describe(row, by_cell[row.cell]))
    for one in compare(study, summaries):
        line = _describe(one.row, one.summary) | {"quantity": one.quantity}
        each = one.row.numbers[one.quantity]
        if len(each) > 1:
            line["published_each"] = " ".join(map(figures, each))
        line |= {"published": one.theirs, "published_ratio": one.their_ratio}
        line |= {"base": base} if one.their_ratio is not None else {}
        line |= _spread("measured", one.ours) | _spread("ratio", one.our_ratio)
        lines.append(line)
    frame = pd.DataFrame(lines, columns=list(COLUMNS))
    return frame.astype(dict.fromkeys(_FIGURES, "float64"))


def _describe(row: Published, summary: Summary) -> dict[str, Any]:
    return {
        "label": row.label,
        "cell": row.cell,
        "status": summary.row.status,
        "reason": summary.row.reason,
        "marks": " ".join(summary.marks) or None,
        "note": row.note or None,
    }


def _spread(name: str, estimate: Estimate | None) -> dict[str, float | None]:
    if estimate is None:
        return {}
    values = (estimate.value, estimate.low, estimate.high)
    return {f"{name}{e}": v for e, v in zip(("", "_lo", "_hi"), values, strict=True)}
