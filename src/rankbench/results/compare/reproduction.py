"""Whether published cells were reproduced here, by the rules of `accept`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

from tabulate import tabulate

from rankbench.results.compare.acceptance import FAIL, PASS, Judged, accept
from rankbench.results.compare.sides import Cell, Side
from rankbench.results.elements.text import show_estimate

REPRODUCED, NOT_REPRODUCED, CANNOT_TELL = "reproduced", "not reproduced", "cannot tell"
_WORDS = {PASS: REPRODUCED, FAIL: NOT_REPRODUCED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduced:
    """A row of the bundle.

    Attributes:
        cell: its id.
        verdict: `REPRODUCED`, `NOT_REPRODUCED` or `CANNOT_TELL`.
        theirs, ours: median throughput, samples/s; None without a number.
        ratio: ours over theirs, with its interval; empty without a number.
        why: what is missing for a verdict; else empty.
        published: whether the bundle has a number for it.
    """

    cell: str
    verdict: str
    theirs: float | None
    ours: float | None
    ratio: str
    why: str
    published: bool


def judge(
    theirs: Side, ours: Side, *, at_least: float, confidence: float
) -> list[Reproduced]:
    """Return a verdict for each row of a bundle.

    A row with a number is reproduced if it passes `accept`, and not reproduced if it
    fails. A row without a number can give no verdict.

    Raises:
        ValueError: an argument makes no sense, or nothing can be compared.
    """
    found = accept(theirs, ours, at_least=at_least, confidence=confidence)
    judged = {row.id: row for row in found.rows}
    return [
        _describe(name, cell, ours.cells.get(name), judged.get(name))
        for name, cell in theirs.cells.items()
    ]


def _describe(name: str, old: Cell, new: Cell | None, row: Judged | None) -> Reproduced:
    if row is None:
        verdict, why = CANNOT_TELL, f"no number in the bundle: {old.status}"
    else:
        verdict, why = _WORDS.get(row.verdict, CANNOT_TELL), row.why
        if verdict == CANNOT_TELL and not why and row.launches:
            why = f"about {row.launches} launches would decide"
    return Reproduced(
        cell=name,
        verdict=verdict,
        theirs=median(old.throughput) if old.throughput else None,
        ours=median(new.throughput) if new and new.throughput else None,
        ratio=str(show_estimate(row.ratio)) if row and row.ratio else "",
        why=why.replace("RESULTS", "the results here").replace(
            "the baseline", "the bundle"
        ),
        published=bool(old.throughput),
    )


def to_text(rows: Sequence[Reproduced]) -> str:
    """A line for each row, and one that counts the verdicts."""
    table = tabulate(
        [
            [
                row.verdict,
                row.cell,
                _show(row.theirs),
                _show(row.ours),
                row.ratio,
                row.why,
            ]
            for row in rows
        ],
        headers=["verdict", "cell", "theirs", "ours", "ours / theirs", ""],
        disable_numparse=True,
    )
    words = (REPRODUCED, NOT_REPRODUCED, CANNOT_TELL)
    counts = [f"{sum(row.verdict == word for row in rows)} {word}" for word in words]
    return f"{table}\n\n{', '.join(counts)} (throughput in samples/s)"


def to_json(rows: Sequence[Reproduced]) -> list[dict[str, object]]:
    """The rows as JSON values."""
    return [asdict(row) for row in rows]


def _show(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
