"""A history as text for a terminal, as JSON for a program, and as a page."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

from rankbench.results.compare.sides import find_differing
from rankbench.results.compare.text import (
    facts_to_json,
    printable,
    show_values,
)
from rankbench.results.elements import plotting
from rankbench.results.elements.section import Drawing, spell_ends
from rankbench.results.elements.text import Grid, Note, Text, one_line, show_estimate
from rankbench.results.history.changes import Change, History, Line
from rankbench.results.history.segments import MIN_RUNS, MIN_SERIES
from rankbench.results.history.store import Store
from rankbench.results.numbers.statistics import CONFIDENCE, geometric_mean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CHANGES = ("since", "cell", "", "NEW / OLD", "runs", "differs")
_POINTS = ("begun", "{unit}/s", "launches", "marks", "run", "differs")

# The plot of a page has room for so many cells, in inches each.
_MOST_PANELS, _HEIGHT = 8, 2.2


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
    changes = [change for change in history.changes if change.line.id == cell]
    return History(history.runs, lines, changes, history.searched)


def to_text(store: Store, history: History, *, points: bool = False) -> str:
    """What changed since when, and the runs of its cells if `points` are wanted."""
    lines = [f"{store.folder}: {_describe_runs(history)}", ""]
    if history.changes:
        rows = [list(map(str, _change_fields(change))) for change in history.changes]
        lines.append(tabulate(rows, headers=_CHANGES, disable_numparse=True))
    else:
        lines.append("No change of level was found.")
    for line in history.lines if points else ():
        lines += ["", *_show_points(line)]
    return printable("\n".join([*lines, "", *_summarise(history)]))


def to_json(store: Store, history: History) -> dict[str, Any]:
    """The contents of `to_text` as JSON, with all digits."""
    return {
        "store": str(store.folder),
        "damaged": list(store.damaged),
        "runs": [
            {
                "run": run.name,
                "experiment": run.experiment,
                "begun": run.begun,
                "ended": run.ended,
            }
            for run in history.runs
        ],
        "worse": history.begins_worse,
        "confidence": CONFIDENCE,
        "searched": history.searched,
        "changes": [
            {
                "cell": change.line.id,
                "hash": change.line.hash,
                "verdict": change.verdict,
                "since": change.since.time,
                "run": change.since.run.name,
                "before": change.before.time,
                "run_before": change.before.run.name,
                **spell_ends("ratio", change.ratio),
                "runs_old": change.runs[0],
                "runs_new": change.runs[1],
                "by_newest_run": change.is_new,
                "differs": facts_to_json(change.differs),
            }
            for change in history.changes
        ],
        "cells": [_line_to_json(line) for line in history.lines],
        "no_number": _list_lost(history),
    }


def _line_to_json(line: Line) -> dict[str, Any]:
    return {
        "cell": line.id,
        "hash": line.hash,
        "unit": line.unit,
        "segments": [
            {
                "since": part[0].time,
                "until": part[-1].time,
                "runs": len(part),
                **spell_ends("throughput", level),
            }
            for part, level in zip(line.segments, line.levels, strict=True)
        ],
        "points": [
            {
                "run": point.run.name,
                "begun": point.time,
                "throughput": list(point.cell.throughput),
                "marks": list(point.cell.marks),
            }
            for point in line.points
        ],
    }


def write_page(path: Path, store: Store, history: History) -> None:
    """Write the changes as FILE.html, and a plot that it shows into plots/ beside it.

    The plot has the cells that changed last, or the first ones if none did.

    Raises:
        OSError: a file cannot be written.
    """
    from rankbench.results.render.files import write_page as write

    lines = {change.line.id: change.line for change in history.changes}
    chosen = list(lines.values() or history.lines)[:_MOST_PANELS]
    drawing = Drawing(
        name=path.stem,
        question="When did the speed change?",
        caption=(
            "Median of the launches of each run with its 95 % interval; the level of "
            "each segment; dashed: the environment changed."
        ),
        draw=partial(_draw, chosen),
    )
    rows = [_change_fields(change) for change in history.changes]
    headings = {name or "level": name == "NEW / OLD" for name in _CHANGES}
    notes = [
        Note("runs", _describe_runs(history)),
        *(Note("not used", damage) for damage in store.damaged),
        Note("cells", one_line("; ".join(_summarise(history)))),
    ]
    write(
        path,
        f"{', '.join(sorted({run.experiment for run in history.runs}))}: history",
        notes,
        Grid("What changed", headings, rows),
        drawing,
    )


def _draw(lines: Sequence[Line], width: float) -> Figure:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num

    figure, grid = plotting.make_figure([_HEIGHT] * len(lines), width=width)
    run, level = "C0", "C1"
    for (axes,), line in zip(grid, lines, strict=True):
        plotting.write_title(axes, line.id)
        axes.set_ylabel(f"{line.unit}/s")
        locator = AutoDateLocator()
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
        times = [date2num(datetime.fromisoformat(point.time)) for point in line.points]
        for place, point in enumerate(line.points):
            number = geometric_mean(point.cell.throughput)
            axes.plot(times[place], number.value, "o", ms=4, color=run)
            if number.interval:
                axes.vlines(times[place], *number.interval, color=run, lw=3, alpha=0.3)
            if place and point.cell.facts != line.points[place - 1].cell.facts:
                axes.axvline(times[place], color="0.5", ls="--", lw=1)
        edges = [0, *line.breaks, len(times)]
        for (begin, end), height in zip(
            itertools.pairwise(edges), line.levels, strict=True
        ):
            axes.hlines(height.value, times[begin], times[end - 1], color=level, lw=2)
    return figure


def _describe_runs(history: History) -> str:
    runs = history.runs
    days = f"{_minute(runs[0].begun)} to {_minute(runs[-1].begun)}"
    names = ", ".join(sorted({run.experiment for run in runs}))
    return f"{len(runs)} runs of {names}, {days} UTC"


def _minute(time: str) -> str:
    """``2026-11-24 02:00`` of an ISO time."""
    return time[:16].replace("T", " ")


def _change_fields(change: Change) -> list[Text]:
    """A row of the table of changes."""
    return [
        Text(_minute(change.since.time)),
        Text(change.line.id),
        Text(change.verdict),
        show_estimate(change.ratio),
        Text(f"{change.runs[0]} -> {change.runs[1]}"),
        Text(_explain(change.differs) or "no fact that is known"),
    ]


def _explain(differs: Mapping[str, tuple[Sequence[str], Sequence[str]]]) -> str:
    """``torch: 2.13.0 -> 2.14.0; ...``; empty if no fact differs."""
    return one_line(
        "; ".join(
            f"{key}: {show_values(old)} -> {show_values(new)}"
            for key, (old, new) in differs.items()
        )
    )


def _list_lost(history: History) -> list[dict[str, Any]]:
    """Cells of the newest run that have a number in older runs alone."""
    known = {line.id for line in history.lines}
    return [
        {"cell": name, "status": cell.status, "reason": cell.reason}
        for name, cell in history.runs[-1].cells.items()
        if name in known and not cell.throughput
    ]


def _show_points(line: Line) -> Iterator[str]:
    yield f"{line.id} (definition {line.hash})"
    rows = []
    for place, point in enumerate(line.points):
        if place in line.breaks:
            rows.append(["----"])
        before = line.points[place - 1] if place else point
        row = [
            _minute(point.time),
            str(show_estimate(geometric_mean(point.cell.throughput))),
            str(len(point.cell.throughput)),
            ", ".join(point.cell.marks),
            point.run.name[:8],
            _explain(find_differing(before.cell.facts, point.cell.facts)),
        ]
        rows.append(row)
    headers = [name.format(unit=line.unit) for name in _POINTS]
    yield tabulate(rows, headers=headers, disable_numparse=True)
    levels = [str(show_estimate(level)) for level in line.levels]
    yield f"levels, means of runs: {' -> '.join(levels)} {line.unit}/s"


def _summarise(history: History) -> Iterator[str]:
    short = sum(not line.is_long for line in history.lines)
    changed = sum(bool(line.breaks) for line in history.lines)
    stable = len(history.lines) - short - changed
    counts = [(changed, "changed"), (stable, "without a change")]
    counts += [(short, f"with less than {MIN_SERIES} runs, too few for any change")]
    yield f"cells: {'; '.join(f'{count} {what}' for count, what in counts if count)}"
    yield (
        f"  with {100 * CONFIDENCE:g} % confidence, all changes of {history.searched} "
        f"cells at once; a level lasts at least {MIN_RUNS} runs"
    )
    for name, group in itertools.groupby(history.lines, key=lambda line: line.id):
        for line in list(group)[1:]:
            begun = _minute(line.points[0].time)
            yield f"{name}: defined otherwise since {begun}: a new line begins there"
    for lost in _list_lost(history):
        yield f"{lost['cell']}: no number in the newest run: {lost['status']}"
    news = [c for c in history.changes if c.is_new and c.is_worse]
    if news:
        names = ", ".join(change.line.id for change in news)
        yield f"the newest run shows that these became slower: {names}"
