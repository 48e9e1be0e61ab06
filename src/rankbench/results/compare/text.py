"""A comparison as text for a terminal and as JSON, in the words of each command."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from statistics import geometric_mean
from typing import Any

from tabulate import tabulate

from rankbench.record import make_printable
from rankbench.results.compare.comparison import (
    CHANGED,
    EQUAL,
    FAIL,
    NO_NUMBER,
    PASS,
    UNDECIDED,
    UNTOLD,
    VERDICTS,
    ComparedCell,
    Comparison,
)
from rankbench.results.compare.sides import CellLaunches
from rankbench.results.elements.section import spell_ends
from rankbench.results.elements.text import figures, show_estimate
from rankbench.results.numbers.fit import MOST_LAUNCHES

# A line with more values would be hard to read.
_MOST_VALUES = 4

# Verdict of `accept` -> what `replay` calls it, in the order of its summary.
_REPLAYED = {
    PASS: "reproduced",
    FAIL: "not reproduced",
    UNDECIDED: "cannot tell",
    NO_NUMBER: "cannot tell",
}


def printable(text: str) -> str:
    """The text of records, which may come from anywhere: terminals must not obey it."""
    return "\n".join(map(make_printable, text.splitlines()))


def show_values(values: Sequence[str]) -> str:
    """The first few of them, with hashes cut as git shows them."""
    shown = [
        value[:12]
        if len(value) >= 32 and not value.strip("0123456789abcdef")
        else value
        for value in values[:_MOST_VALUES]
    ]
    more = len(values) - len(shown)
    return "; ".join(shown) + (f" and {more} more" if more else "") or "unknown"


def tabulate_rows(rows: Sequence[Sequence[str]], *headers: str) -> str:
    """A table for a terminal, in which no text is taken for a number."""
    return tabulate(rows, headers=headers, disable_numparse=True)


def _sort(comparison: Comparison, order: Sequence[str]) -> list[ComparedCell]:
    """The cells with any of these verdicts, by verdict."""
    return [cell for verdict in order for cell in comparison.having(verdict)]


def _count(comparison: Comparison, order: Sequence[str]) -> list[str]:
    counts = {verdict: len(comparison.having(verdict)) for verdict in order}
    return [f"{count} {verdict}" for verdict, count in counts.items() if count]


def facts_to_json(
    facts: Mapping[str, tuple[Sequence[str], Sequence[str]]],
) -> dict[str, Any]:
    """What differs: key -> values in OLD and in NEW."""
    return {key: {"old": [*old], "new": [*new]} for key, (old, new) in facts.items()}


# --- compare --------------------------------------------------------------------------


def compared_to_text(comparison: Comparison) -> str:
    """Circumstances that differ, cells, summary."""
    lines = [*_warn(comparison), *_tell(comparison), "", *_summarise(comparison)]
    return printable("\n".join(lines))


def compared_to_json(comparison: Comparison) -> dict[str, Any]:
    """The contents of `compared_to_text`, with all digits."""
    return {
        "old": comparison.old.name,
        "new": comparison.new.name,
        "confidence": comparison.confidence,
        "margin": comparison.margin,
        "paired": comparison.paired,
        "order": comparison.order,
        "worse": comparison.is_worse,
        "counts": {verdict: len(comparison.having(verdict)) for verdict in VERDICTS},
        "differs": facts_to_json(comparison.facts),
        "cells": [
            {
                "cell": cell.id,
                "verdict": cell.verdict,
                **{
                    name: {
                        "status": side.status,
                        "reason": side.reason,
                        "throughput": list(side.throughput),
                        "unit": f"{side.unit}/s",
                    }
                    for name, side in (("old", cell.old), ("new", cell.new))
                    if side
                },
                **spell_ends("ratio", cell.ratio),
            }
            for cell in comparison.cells
        ],
        "only_old": comparison.only_old,
        "only_new": comparison.only_new,
        "drifting": comparison.drifting,
    }


def _tell(comparison: Comparison) -> Iterator[str]:
    """The sides, what differs between them, and a line for each cell."""
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
    yield tabulate_rows(
        [
            [
                cell.id,
                cell.verdict,
                str(show_estimate(cell.ratio)),
                show_launches(cell.old, comparison.old.disturbed.get(cell.id, ())),
                show_launches(cell.new, comparison.new.disturbed.get(cell.id, ())),
            ]
            for cell in _sort(comparison, list(VERDICTS))
            if cell.verdict != NO_NUMBER
        ],
        *("cell", "verdict", "NEW / OLD", "OLD", "NEW"),
    )


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
    elif not comparison.old.begun or not comparison.new.begun:
        yield "warning: one side does not say when it was measured"


def show_launches(cell: CellLaunches | None, disturbed: Collection[int] = ()) -> str:
    """``812.3 samples/s (6)`` of the launches that count, or why there is no number."""
    if cell is None:
        return ""
    if not cell.throughput:
        return f"{cell.status}: {cell.reason}" if cell.reason else cell.status
    counted = [v for at, v in enumerate(cell.throughput) if at not in disturbed]
    of = f" of {len(cell.throughput)}" if disturbed else ""
    center = figures(geometric_mean(counted))
    return f"{center} {cell.unit}/s ({len(counted)}{of})"


def _summarise(comparison: Comparison) -> Iterator[str]:
    counts = "; ".join(_count(comparison, list(VERDICTS)))
    yield f"{counts}, at {100 * comparison.confidence:g} % confidence"
    for verdict, meaning in VERDICTS.items():
        if comparison.having(verdict) and verdict not in (NO_NUMBER, CHANGED):
            yield f"  {verdict}: {meaning}"
    if comparison.having(EQUAL):
        yield f"  the margin of equality is {100 * comparison.margin:g} %"
    ratios = [cell.ratio for cell in comparison.having(UNTOLD)]
    ends = [ratio.interval for ratio in ratios if ratio and ratio.interval]
    if ends:
        widest = max(max(1 / low, high) for low, high in ends) - 1
        hidden = figures(100 * widest, 2)
        yield f"  a change of up to {hidden} % may hide where it cannot tell"
    if comparison.drifting:
        yield (
            "  launches grew faster or slower in the course of a run, so the machine "
            f"changed: {', '.join(comparison.drifting)}"
        )
    sides = (("OLD", comparison.only_old), ("NEW", comparison.only_new))
    for title, names in sides:
        if names:
            yield f"only in {title}: {', '.join(names)}"


# --- accept, and replay ---------------------------------------------------------------


def accepted_to_text(comparison: Comparison) -> str:
    """The verdict of the machine, then a line for each row."""
    order = (FAIL, UNDECIDED, PASS)
    rows = [
        [
            cell.verdict,
            cell.id,
            str(show_estimate(cell.ratio)),
            " / ".join(map(str, _count_launches(cell))),
            _remark(cell),
        ]
        for cell in _sort(comparison, order)
    ]
    old, new = comparison.old.name, comparison.new.name
    compared = sum(cell.ratio is not None for cell in comparison.cells)
    return "\n".join(
        [
            f"{comparison.verdict}: {new} against {old}: every row at least "
            f"{comparison.at_least:g} times the baseline, at "
            f"{comparison.confidence:.0%} confidence over all rows",
            f"  {compared} of {len(comparison.cells)} rows of the baseline were "
            f"compared: {', '.join(_count(comparison, order))}",
            "",
            tabulate_rows(
                rows, "verdict", "cell", "RESULTS / BASELINE", "launches", ""
            ),
        ]
    )


def accepted_to_json(comparison: Comparison) -> dict[str, Any]:
    """All of it as JSON values."""
    return {
        "baseline": comparison.old.name,
        "results": comparison.new.name,
        "at_least": comparison.at_least,
        "confidence": comparison.confidence,
        "verdict": comparison.verdict,
        "rows_given": len(comparison.cells),
        "rows": [
            {
                "cell": cell.id,
                "verdict": cell.verdict,
                **spell_ends("ratio", cell.ratio),
                "why": cell.why or None,
                "launches_to_decide": cell.launches,
                "launches_baseline": _count_launches(cell)[0],
                "launches": _count_launches(cell)[1],
            }
            for cell in comparison.cells
            if cell.verdict != NO_NUMBER
        ],
    }


def _count_launches(cell: ComparedCell) -> tuple[int, int]:
    return len(cell.old.throughput), len(cell.new.throughput) if cell.new else 0


def _remark(cell: ComparedCell) -> str:
    """What is missing for a verdict."""
    if cell.why or cell.verdict != UNDECIDED:
        return cell.why
    if cell.launches is None:
        return f"not even {MOST_LAUNCHES} launches would decide"
    return f"about {cell.launches} launches would decide"


def replayed_to_text(comparison: Comparison) -> str:
    """A line for each row of the bundle, and one that counts the verdicts."""
    rows = replayed_to_json(comparison)
    shown = [
        [
            row["verdict"],
            row["cell"],
            *(f"{row[side]:.4g}" if row[side] else "" for side in ("theirs", "ours")),
            row["ratio"],
            row["why"],
        ]
        for row in rows
    ]
    verdicts = [row["verdict"] for row in rows]
    counts = [
        f"{verdicts.count(word)} {word}" for word in dict.fromkeys(_REPLAYED.values())
    ]
    table = tabulate_rows(
        shown, "verdict", "cell", "theirs", "ours", "ours / theirs", ""
    )
    return f"{table}\n\n{', '.join(counts)} (throughput in samples/s)"


def replayed_to_json(comparison: Comparison) -> list[Mapping[str, Any]]:
    """Each row of the bundle; `published` if the bundle has a number for it."""
    return [
        {
            "cell": cell.id,
            "verdict": _REPLAYED[cell.verdict],
            "theirs": mean_throughput(cell.old),
            "ours": mean_throughput(cell.new),
            "ratio": str(show_estimate(cell.ratio)),
            "why": _remark(cell)
            .replace("RESULTS", "the results here")
            .replace("the baseline", "the bundle"),
            "published": bool(cell.old.throughput),
        }
        for cell in comparison.cells
    ]


def mean_throughput(cell: CellLaunches | None) -> float | None:
    """The geometric mean over its launches; None without launches."""
    return geometric_mean(cell.throughput) if cell and cell.throughput else None
