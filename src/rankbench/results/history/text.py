"""A history as text for a terminal, and as JSON for a program."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from tabulate import tabulate

from rankbench.results.compare.comparison import find_differing
from rankbench.results.compare.text import show_values
from rankbench.results.elements.text import figures, one_line, show_estimate
from rankbench.results.history.lines import Change, History, Line, Point
from rankbench.results.history.store import Store
from rankbench.results.numbers.segments import MIN_RUNS, MIN_SERIES
from rankbench.results.numbers.statistics import Estimate, median

CORRECTION = "benjamini-hochberg"

_CHANGES = ("since", "cell", "", "NEW / OLD", "runs", "p", "differs")
_POINTS = ("begun", "{unit}/s", "launches", "marks", "run", "differs")


def choose(history: History, cell: str | None) -> History:
    """The history of one cell, of any definition; of all cells for None.

    Raises:
        ValueError: no run has a number of this cell.
    """
    if cell is None:
        return history
    lines = [line for line in history.lines if line.id == cell]
    if not lines:
        known = ", ".join(dict.fromkeys(line.id for line in history.lines))
        raise ValueError(f"no run has a number of the cell {cell} (there are: {known})")
    changes = [one for one in history.changes if one.line.id == cell]
    return History(history.runs, lines, changes, history.level)


def to_text(store: Store, history: History, cell: str | None = None) -> str:
    """What changed since when, and the runs of the cell if one is given."""
    shown = choose(history, cell)
    lines = [*_head(store, history), "", *_tell_changes(shown.changes)]
    if cell is not None:
        for line in shown.lines:
            lines += ["", *_tell_points(line)]
    lines += ["", *_summary(history, shown)]
    # Runs may come from anywhere: the terminal must not obey them.
    whole = "\n".join(lines).splitlines()
    return "\n".join(
        "".join(char if char.isprintable() else "?" for char in line) for line in whole
    )


def to_json(store: Store, history: History, cell: str | None = None) -> dict[str, Any]:
    """The contents of `to_text` as JSON, with all digits."""
    shown = choose(history, cell)
    return {
        "store": str(store.folder),
        "damaged": list(store.damaged),
        "runs": [
            {
                "run": run.digest,
                "experiment": run.experiment,
                "begun": run.begun,
                "ended": run.ended,
            }
            for run in history.runs
        ],
        "worse": shown.begins_worse,
        "level": history.level,
        "correction": CORRECTION,
        "tested": history.tested,
        "changes": [_change_to_json(change) for change in shown.changes],
        "cells": [_line_to_json(line) for line in shown.lines],
        "no_number": _list_lost(shown),
    }


def _change_to_json(change: Change) -> dict[str, Any]:
    return {
        "cell": change.line.id,
        "hash": change.line.hash,
        "verdict": verdict(change),
        "since": change.since.time,
        "run": change.since.run.digest,
        "before": change.before.time,
        "run_before": change.before.run.digest,
        "ratio": change.ratio.value,
        "ratio_lo": change.ratio.low,
        "ratio_hi": change.ratio.high,
        "runs_old": change.runs[0],
        "runs_new": change.runs[1],
        "p_value": change.line.p_value,
        "p_adjusted": change.line.adjusted,
        "by_newest_run": change.is_new,
        "differs": {
            key: {"old": list(old), "new": list(new)}
            for key, (old, new) in change.differs.items()
        },
    }


def _line_to_json(line: Line) -> dict[str, Any]:
    return {
        "cell": line.id,
        "hash": line.hash,
        "workload": line.points[-1].cell.workload,
        "unit": line.unit,
        "p_value": line.p_value,
        "p_adjusted": line.adjusted,
        "segments": [
            {
                "since": part[0].time,
                "until": part[-1].time,
                "runs": len(part),
                "throughput": level.value,
                "throughput_lo": level.low,
                "throughput_hi": level.high,
            }
            for part, level in zip(line.segments, line.levels, strict=True)
        ],
        "points": [
            {
                "run": point.run.digest,
                "begun": point.time,
                "throughput": list(point.cell.throughput),
                "marks": list(point.cell.marks),
            }
            for point in line.points
        ],
    }


def verdict(change: Change) -> str:
    return "worse" if change.is_worse else "better"


def minute(time: str) -> str:
    """``2026-11-24 02:00`` of an ISO time."""
    return time[:16].replace("T", " ")


def explain(change: Change) -> str:
    """``torch: 2.13.0 -> 2.14.0; ...``, or that no fact differs."""
    return explain_between(change.before, change.since) or "no fact that is known"


def explain_between(before: Point, since: Point) -> str:
    """Facts that differ between two points, with both values; empty if none does."""
    differs = find_differing(before.cell.facts, since.cell.facts)
    return one_line(
        "; ".join(
            f"{key}: {show_values(old)} -> {show_values(new)}"
            for key, (old, new) in differs.items()
        )
    )


def list_redefined(lines: Sequence[Line]) -> list[tuple[str, str]]:
    """Id and time of each definition of a cell but its first one."""
    found = []
    for name, group in itertools.groupby(lines, key=lambda line: line.id):
        found += [(name, line.points[0].time) for line in list(group)[1:]]
    return found


def _list_lost(history: History) -> list[dict[str, Any]]:
    """Cells of the newest run that have a number in older runs alone."""
    newest = history.runs[-1]
    known = {line.id for line in history.lines}
    return [
        {"cell": name, "status": cell.status, "reason": cell.reason}
        for name, cell in newest.cells.items()
        if name in known and not cell.throughput
    ]


def _head(store: Store, history: History) -> Iterator[str]:
    runs = history.runs
    days = f"{minute(runs[0].begun)} to {minute(runs[-1].begun)}"
    names = ", ".join(sorted({run.experiment for run in runs}))
    yield f"{store.folder}: {len(runs)} runs of {names}, {days} UTC"


def _tell_changes(changes: Sequence[Change]) -> Iterator[str]:
    if not changes:
        yield "No change of level was found."
        return
    rows = []
    for change in changes:
        cells = [
            minute(change.since.time),
            change.line.id,
            verdict(change),
            str(show_estimate(change.ratio)),
            f"{change.runs[0]} -> {change.runs[1]}",
            f"{change.line.adjusted:.2g}",
            explain(change),
        ]
        rows.append(cells)
    yield tabulate(rows, headers=_CHANGES, disable_numparse=True)


def _tell_points(line: Line) -> Iterator[str]:
    yield f"{line.id} (definition {line.hash})"
    breaks, rows = set(line.breaks), []
    for place, point in enumerate(line.points):
        if place in breaks:
            rows.append(["----"])
        before = line.points[place - 1] if place else point
        row = [
            minute(point.time),
            str(show_estimate(median(point.cell.throughput))),
            str(len(point.cell.throughput)),
            ", ".join(point.cell.marks),
            point.run.digest[:8],
            explain_between(before, point),
        ]
        rows.append(row)
    headers = [one.format(unit=line.unit) for one in _POINTS]
    yield tabulate(rows, headers=headers, disable_numparse=True)
    levels = [_show_level(level) for level in line.levels]
    yield f"levels, medians of runs: {' -> '.join(levels)} {line.unit}/s"


def _show_level(level: Estimate) -> str:
    return str(show_estimate(level)) if level.interval else figures(level.value)


def _summary(history: History, shown: History) -> Iterator[str]:
    short = sum(line.p_value is None for line in shown.lines)
    stable = sum(line.p_value is not None and not line.breaks for line in shown.lines)
    changed = sum(bool(line.breaks) for line in shown.lines)
    told = [(changed, "changed"), (stable, "without a change")]
    told += [(short, f"with less than {MIN_SERIES} runs, too few for any change")]
    yield f"cells: {'; '.join(f'{count} {what}' for count, what in told if count)}"
    yield (
        f"  tests at {100 * history.level:g} %, corrected for {history.tested} cells "
        f"({CORRECTION}); a level lasts at least {MIN_RUNS} runs"
    )
    for name, time in list_redefined(shown.lines):
        yield f"{name}: defined otherwise since {minute(time)}: a new line begins there"
    for lost in _list_lost(shown):
        yield f"{lost['cell']}: no number in the newest run: {lost['status']}"
    news = [one for one in shown.changes if one.is_new and one.is_worse]
    if news:
        names = ", ".join(one.line.id for one in news)
        yield f"the newest run shows that these became slower: {names}"
