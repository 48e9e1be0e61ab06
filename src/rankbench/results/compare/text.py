"""A comparison as text for a terminal, and as JSON for a program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tabulate import tabulate

from rankbench.results.compare.comparison import (
    CHANGED,
    EQUAL,
    NO_NUMBER,
    UNTOLD,
    VERDICTS,
    Compared,
    Comparison,
)
from rankbench.results.compare.sides import Cell
from rankbench.results.elements.text import figures, show_estimate

# A line with more values would be hard to read.
_MOST_VALUES = 4

_HEADINGS = ("cell", "verdict", "NEW / OLD", "NEW is faster", "p", "OLD", "NEW")


def to_text(comparison: Comparison) -> str:
    """The comparison as text: circumstances that differ, cells, summary."""
    return printable("\n".join(_lines(comparison)))


def printable(text: str) -> str:
    """The text of records, which may come from anywhere: terminals must not obey it."""
    return "\n".join(
        "".join(char if char.isprintable() else "?" for char in line)
        for line in text.splitlines()
    )


def to_json(comparison: Comparison) -> dict[str, Any]:
    """The contents of `to_text` as JSON, with all digits."""
    return {
        "old": comparison.old.name,
        "new": comparison.new.name,
        "confidence": comparison.confidence,
        "margin": comparison.margin,
        "within": comparison.within,
        "paired": comparison.paired,
        "order": comparison.order,
        "correction": "benjamini-hochberg",
        "worse": comparison.is_worse,
        "counts": {verdict: len(comparison.having(verdict)) for verdict in VERDICTS},
        "differs": {
            key: {"old": list(old), "new": list(new)}
            for key, (old, new) in comparison.facts.items()
        },
        "cells": [_to_json(cell) for cell in comparison.cells],
        "only_old": list(comparison.only_old),
        "only_new": list(comparison.only_new),
        "too_few_for_one_alone": list(comparison.blind),
        "drifting": list(comparison.drifting),
    }


def _to_json(cell: Compared) -> dict[str, Any]:
    found: dict[str, Any] = {
        "cell": cell.id,
        "verdict": cell.verdict,
        "old": _side_to_json(cell.old),
        "new": _side_to_json(cell.new),
    }
    if cell.difference:
        found |= {
            "ratio": cell.difference.ratio.value,
            "ratio_lo": cell.difference.ratio.low,
            "ratio_hi": cell.difference.ratio.high,
            "superiority": cell.difference.superiority,
            "p_value": cell.difference.p_value,
            "p_adjusted": cell.adjusted,
            "p_equal": cell.difference.equal,
        }
    return found


def _side_to_json(cell: Cell) -> dict[str, Any]:
    return {
        "status": cell.status,
        "reason": cell.reason,
        "throughput": list(cell.throughput),
        "unit": f"{cell.unit}/s",
    }


def _lines(comparison: Comparison) -> Iterator[str]:
    yield from _warn(comparison)
    for title, side in (("OLD", comparison.old), ("NEW", comparison.new)):
        yield f"{title}  {side.name} (experiment {side.experiment})"
    yield ""
    if comparison.facts:
        yield "The runs differ in more than time:"
        rows = [
            [f"  {key}", show_values(old), "->", show_values(new)]
            for key, (old, new) in comparison.facts.items()
        ]
        yield tabulate(rows, tablefmt="plain", disable_numparse=True)
        yield ""
    order = list(VERDICTS)
    cells = sorted(comparison.cells, key=lambda cell: order.index(cell.verdict))
    rows = [_row(cell) for cell in cells if cell.verdict != NO_NUMBER]
    yield tabulate(rows, headers=_HEADINGS, disable_numparse=True)
    yield ""
    yield from _summary(comparison)


def _warn(comparison: Comparison) -> Iterator[str]:
    """Whether the machine may have changed between the sides."""
    if comparison.paired:
        yield "compared within rounds: launches of both sides took turns"
    elif comparison.order:
        yield (
            f"warning: {comparison.order}, one after the other: the machine may have "
            "changed in between, and no test can tell. docs/comparing.md shows how to "
            "measure both in rounds"
        )
    elif not comparison.old.span or not comparison.new.span:
        yield "warning: one side does not say when it was measured"


def _row(cell: Compared) -> list[str]:
    difference = cell.difference
    found = ["", "", ""]
    if difference:
        p_value = "" if cell.adjusted is None else f"{cell.adjusted:.2g}"
        shown = show_estimate(difference.ratio)
        found = [str(shown), f"{difference.superiority:.2f}", p_value]
    return [cell.id, cell.verdict, *found, _launches(cell.old), _launches(cell.new)]


def _launches(cell: Cell) -> str:
    """``812.3 samples/s (6)``, or why there is no number."""
    if not cell.throughput:
        return f"{cell.status}: {cell.reason}" if cell.reason else cell.status
    values = sorted(cell.throughput)
    middle = len(values) // 2
    center = (values[middle] + values[~middle]) / 2
    return f"{figures(center)} {cell.unit}/s ({len(values)})"


def _summary(comparison: Comparison) -> Iterator[str]:
    counts = {verdict: len(comparison.having(verdict)) for verdict in VERDICTS}
    told = [f"{n} {verdict}" for verdict, n in counts.items() if n]
    yield f"{'; '.join(told)}, at {100 * comparison.confidence:g} % confidence"
    for verdict, meaning in VERDICTS.items():
        if counts[verdict] and verdict not in (NO_NUMBER, CHANGED):
            yield f"  {verdict}: {meaning}"
    if comparison.having(EQUAL):
        yield f"  the margin of equality is {100 * comparison.within:g} %"
    untold = [cell.difference for cell in comparison.having(UNTOLD)]
    ends = [each.ratio.interval for each in untold if each and each.ratio.interval]
    if ends:
        widest = max(max(1 / low, high) for low, high in ends) - 1
        yield f"  a change of up to {100 * widest:.2g} % may hide where it cannot tell"
    if comparison.margin:
        yield f"  changes of up to {100 * comparison.margin:g} % count as none"
    if comparison.blind:
        count = len(comparison.blind)
        yield (
            f"  {count} cells have too few launches to be told apart alone among "
            f"{comparison.judged}: measure more, or fewer cells"
        )
    if comparison.drifting:
        yield (
            "  launches grew faster or slower in the course of a run, so the machine "
            f"changed: {', '.join(comparison.drifting)}"
        )
    for title, names in (("OLD", comparison.only_old), ("NEW", comparison.only_new)):
        if names:
            yield f"only in {title}: {', '.join(names)}"


def show_values(values: Sequence[str]) -> str:
    shown = [_short(value) for value in values[:_MOST_VALUES]]
    more = len(values) - len(shown)
    return "; ".join(shown) + (f" and {more} more" if more else "") or "unknown"


def _short(value: str) -> str:
    """The beginning of a hash, as git shows it."""
    is_hash = len(value) >= 32 and all(char in "0123456789abcdef" for char in value)
    return value[:12] if is_hash else value
