"""Published numbers beside measured ones, each against its own side's base."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rankbench.results.elements.section import Content, Section
from rankbench.results.elements.text import Grid, Note, Text, figures, show_estimate
from rankbench.results.numbers.fit import ratio_of_samples
from rankbench.results.numbers.flops import mfu_of_launches
from rankbench.results.numbers.result_set import ResultSet
from rankbench.results.numbers.statistics import Estimate, mean
from rankbench.results.numbers.summary import OF_LAUNCHES, Summary
from rankbench.results.read.rows import PublishedRow, Study

# Values that a source may have published: heading, and whether the ratio to the base
# says more than the value itself.
QUANTITIES = {
    "throughput": ("throughput ({unit}/s)", True),
    "step_ms": ("step (ms)", True),
    "epoch_s": ("epoch (s)", True),
    "total_s": ("whole training (s)", True),
    "load_ms": ("loading, of a step (ms)", True),
    "update_ms": ("the rest of a step (ms)", True),
    "memory_mib": ("memory (MiB)", True),
    "mfu_pct": ("MFU (%)", False),
    "accuracy": ("accuracy", False),
}


_UNITS = ("samples", "tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One published number and what was measured in its place.

    Attributes:
        row: of the source.
        summary: of the cell that repeats it.
        quantity: a key of `QUANTITIES`.
        theirs: as published; the largest where there is one for each device.
        ours: None unless the cell is ok and was measured for this.
        our_ratio, their_ratio: over the base of the same side; None without one.
    """

    row: PublishedRow
    summary: Summary
    quantity: str
    theirs: float
    ours: Estimate | None
    our_ratio: Estimate | None
    their_ratio: float | None


def compare(
    study: Study, summaries: Sequence[Summary], peaks: Mapping[str, float]
) -> list[Pair]:
    """Every published number beside its cell's, in the order of the source.

    Args:
        peaks: precision -> TFLOP/s of a device, as the site file gives it.
    """
    by_cell = {summary.row.id: summary for summary in summaries}
    base = study.base
    return [
        _compare(row, name, base, by_cell, peaks)
        for row in study.rows
        for name in QUANTITIES
        if name in row.numbers
    ]


def _compare(
    row: PublishedRow,
    name: str,
    base: PublishedRow | None,
    cells: Mapping[str, Summary],
    peaks: Mapping[str, float],
) -> Pair:
    theirs, values = max(row.numbers[name]), _values(cells[row.cell], name, peaks)
    our_ratio = their_ratio = None
    if base and QUANTITIES[name][1]:
        below = _values(cells[base.cell], name, peaks)
        if values and below and row.cell == base.cell:
            our_ratio = Estimate(1.0)
        elif values and below and min(*values, *below) > 0:
            our_ratio = ratio_of_samples(values, below)
        if name in base.numbers:
            their_ratio = theirs / max(base.numbers[name])
    return Pair(
        row=row,
        summary=cells[row.cell],
        quantity=name,
        theirs=theirs,
        ours=OF_LAUNCHES.get(name, mean)(values) if values else None,
        our_ratio=our_ratio,
        their_ratio=their_ratio,
    )


def _values(summary: Summary, name: str, peaks: Mapping[str, float]) -> list[float]:
    """Of each launch; none where the cell is not ok, or was not evaluated."""
    if name == "mfu_pct":
        return mfu_of_launches(summary, peaks)
    found = [getattr(launch, name) for launch in summary.counted]
    return [value for value in found if value is not None]


def make(found: ResultSet) -> Content | None:
    """A row for each published number; None if the experiment repeats no study."""
    study, summaries = found.results.study, found.summaries
    if study is None:
        return None
    by_cell = {summary.row.id: summary for summary in summaries}
    pairs = compare(study, summaries, found.results.peaks)
    grids = [_show_rows(study, by_cell)] if study.rows else []
    for name in QUANTITIES:
        for unit in _UNITS if name == "throughput" else [None]:
            of_quantity = [
                one
                for one in pairs
                if one.quantity == name and unit in (None, one.summary.row.cell.unit)
            ]
            if of_quantity:
                title = QUANTITIES[name][0].format(unit=unit)
                grids.append(_show_quantity(title, QUANTITIES[name][1], of_quantity))
    about = [Note(key, text) for key, text in study.source.items() if key != "base"]
    if study.override:
        text = f"{study.override}: what was measured is smaller than what was published"
        about.append(Note("override", f"{text}; the cells say how."))
    if study.base:
        about.append(Note("base", f"{study.base.label}: {study.base.cell}"))
    return Content(
        rows=_rows(study, pairs, by_cell),
        grids=grids,
        before=about,
        notes=[Note(row.label, row.note) for row in study.rows if row.note],
    )


def _show_rows(study: Study, by_cell: Mapping[str, Summary]) -> Grid:
    columns = {"published row": False, "cell": False, "status": False, "why": False}
    rows = []
    for row in study.rows:
        summary = by_cell[row.cell]
        why = summary.row.reason or ", ".join(summary.marks)
        rows.append([Text(t) for t in (row.label, row.cell, summary.row.status, why)])
    return Grid("rows", columns, rows)


def _show_quantity(title: str, has_ratio: bool, found: Sequence[Pair]) -> Grid:
    columns = {"published row": False, "measured": True, "published": True}
    if has_ratio:
        columns |= {"measured / its base": True, "published / its base": True}
    rows = []
    for one in found:
        each = " / ".join(figures(value) for value in one.row.numbers[one.quantity])
        texts = [Text(one.row.label), show_estimate(one.ours), Text(each)]
        if has_ratio:
            theirs = None if one.their_ratio is None else Estimate(one.their_ratio)
            texts += [show_estimate(one.our_ratio), show_estimate(theirs)]
        rows.append(texts)
    return Grid(title, columns, rows)


def _rows(
    study: Study, pairs: Sequence[Pair], by_cell: Mapping[str, Summary]
) -> list[dict[str, Any]]:
    """A row for each number, and for each row of the source without any."""
    base = study.base.label if study.base else None
    rows: list[dict[str, Any]] = []
    for row in study.rows:
        if not row.numbers:
            rows.append(_describe(row, by_cell[row.cell]))
    for one in pairs:
        line = _describe(one.row, one.summary) | {"quantity": one.quantity}
        each = one.row.numbers[one.quantity]
        if len(each) > 1:
            line["published_each"] = " ".join(map(figures, each))
        line |= {"published": one.theirs, "published_ratio": one.their_ratio}
        line |= {"base": base} if one.their_ratio is not None else {}
        line |= {"measured": one.ours, "ratio": one.our_ratio}
        rows.append(line)
    return rows


def _describe(row: PublishedRow, summary: Summary) -> dict[str, Any]:
    return {
        "label": row.label,
        "cell": row.cell,
        "status": summary.row.status,
        "reason": summary.row.reason,
        "marks": " ".join(summary.marks) or None,
        "note": row.note or None,
    }


SECTION = Section(
    name="published",
    title="Published numbers",
    reading=(
        "The published numbers are another machine's, and often another software's: "
        "compare no absolute value across the two sides. Compare the ratios: each side "
        "is divided by its own base, so that the machine cancels out as far as it can."
    ),
    order=10,
    make=make,
    columns={
        **dict.fromkeys(
            ("label", "cell", "status", "reason", "marks", "quantity"), str
        ),
        "measured": Estimate,
        "published": float,
        "published_each": str,
        "ratio": Estimate,
        "published_ratio": float,
        "base": str,
        "note": str,
    },
)
