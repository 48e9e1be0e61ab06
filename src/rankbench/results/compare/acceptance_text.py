"""An acceptance as text for a terminal, and as JSON for a program."""

from __future__ import annotations

from collections.abc import Mapping

from tabulate import tabulate

from rankbench.results.compare.acceptance import (
    FAIL,
    MOST_LAUNCHES,
    PASS,
    UNDECIDED,
    Acceptance,
    Judged,
)
from rankbench.results.elements.text import show_estimate


def to_text(found: Acceptance) -> str:
    """The verdict of the machine, then a line for each row."""
    counts = [
        f"{n} {verdict}"
        for verdict in (FAIL, UNDECIDED, PASS)
        if (n := sum(row.verdict == verdict for row in found.rows))
    ]
    order = (FAIL, UNDECIDED, PASS)
    rows = sorted(found.rows, key=lambda row: order.index(row.verdict))
    table = tabulate(
        [
            [
                row.verdict,
                row.id,
                str(show_estimate(row.ratio)),
                f"{row.counts[0]} / {row.counts[1]}",
                _remark(row),
            ]
            for row in rows
        ],
        headers=["verdict", "cell", "RESULTS / BASELINE", "launches", ""],
        disable_numparse=True,
    )
    return "\n".join(
        [
            f"{found.verdict}: {found.results} against {found.baseline}: every row at "
            f"least {found.at_least:g} times the baseline, at {found.confidence:.0%} "
            "confidence over all rows",
            f"  {', '.join(counts)}",
            "",
            table,
        ]
    )


def _remark(row: Judged) -> str:
    if row.why:
        return row.why
    if row.verdict != UNDECIDED:
        return ""
    if row.launches is None:
        return f"not even {MOST_LAUNCHES} launches would decide"
    return f"about {row.launches} launches would decide"


def to_json(found: Acceptance) -> dict[str, object]:
    """All of it as JSON values."""
    return {
        "baseline": found.baseline,
        "results": found.results,
        "at_least": found.at_least,
        "confidence": found.confidence,
        "correction": "holm",
        "verdict": found.verdict,
        "rows": [_row_to_json(row) for row in found.rows],
    }


def _row_to_json(row: Judged) -> Mapping[str, object]:
    ratio = row.ratio
    return {
        "cell": row.id,
        "verdict": row.verdict,
        "ratio": None if ratio is None else ratio.value,
        "ratio_lo": None if ratio is None else ratio.low,
        "ratio_hi": None if ratio is None else ratio.high,
        "why": row.why or None,
        "launches_to_decide": row.launches,
        "launches_baseline": row.counts[0],
        "launches": row.counts[1],
    }
