"""A comparison in words, as a table, as JSON, and as a page with a plot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from functools import partial
from pathlib import Path
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any

from rankbench.results.compare.comparison import (
    EQUAL,
    LOST,
    NO_NUMBER,
    OF_MACHINE,
    OTHER_MACHINE,
    OTHER_SESSION,
    SAME,
    VERDICTS,
    ComparedCell,
    Comparison,
)
from rankbench.results.compare.sides import (
    CellLaunches,
    Side,
    find_differing,
)
from rankbench.results.elements import plotting
from rankbench.results.elements.section import Drawing, spell_ends
from rankbench.results.elements.text import (
    Grid,
    Note,
    Text,
    figures,
    one_line,
    show_estimate,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# A line with more values would be hard to read.
_MOST_VALUES = 4

# What a reader must know before any ratio.
_FIRST = (OTHER_MACHINE, SAME, OTHER_SESSION)

# A page with more plots would be hard to read. Inches of a plot.
_MOST_PANELS, _HEIGHT = 24, 1.6


def to_json(comparison: Comparison) -> dict[str, Any]:
    """All of it, with all digits."""
    return {
        "verdict": comparison.verdict,
        "at_least": comparison.at_least,
        "by_date": comparison.by_date,
        "confidence": comparison.confidence,
        "margin": comparison.margin,
        "sides": [asdict(side) for side in comparison.sides],
        "counts": Counter(cell.verdict for cell in comparison.cells),
        "cells": [
            {
                "cell": cell.id,
                "base": cell.base.name,
                "side": cell.side.name,
                "verdict": cell.verdict,
                "why": cell.why or None,
                **spell_ends("ratio", cell.ratio),
            }
            for cell in comparison.cells
        ],
    }


def write_page(path: Path, comparison: Comparison) -> None:
    """Write FILE.html, and a plot of the throughput in each side into plots/ beside it.

    Raises:
        OSError: a file cannot be written.
    """
    from rankbench.results.render.files import write_page as write

    question = "Which run is the fastest?"
    if comparison.by_date:
        question = "When did the speed change?"
    drawing = Drawing(
        name=path.stem,
        question=question,
        caption=(
            "Each dot is a launch, each bar the mean of a run. Colors are machines. "
            "Dashed: software, image or code changed. The table has the verdicts."
        ),
        draw=partial(_draw, comparison, question),
    )
    notes, grid, lines = describe(comparison)
    notes.append(Note("verdicts", " ".join(lines)))
    title = ", ".join(dict.fromkeys(side.experiment for side in comparison.sides))
    write(path, f"{title}: comparison", notes, grid, drawing)


def _labels(comparison: Comparison) -> dict[str, str]:
    """Name of a side -> what it is called in a table: a letter, or its date."""
    names = [side.name for side in comparison.sides]
    if comparison.by_date or len(names) > len(ascii_uppercase):
        return {side.name: _minute(side.begun) for side in comparison.sides}
    return dict(zip(names, ascii_uppercase, strict=False))


def _minute(time: str) -> str:
    """``2026-11-24 02:00`` of an ISO time."""
    return time[:16].replace("T", " ")


def describe(comparison: Comparison) -> tuple[list[Note], Grid, list[str]]:
    """Notes that come first, the table, and lines that come last."""
    return [*_introduce(comparison)], _make_grid(comparison), [*_summarise(comparison)]


def _introduce(comparison: Comparison) -> Iterator[Note]:
    """The sides, how they were measured, and what differs between them."""
    labels, sides = _labels(comparison), comparison.sides
    if comparison.at_least is not None:
        row, base = "row", "A"
        if comparison.by_date:
            row, base = "row of the newest run", "that of the run before"
        said = f"is each {row} at least {comparison.at_least:g} times {base}?"
        yield Note(comparison.verdict, said)
    if comparison.by_date:
        first, last = labels[sides[0].name], labels[sides[-1].name]
        said = f"{len(sides)} of {sides[-1].experiment}, {first} to {last} UTC"
        yield Note("runs", said)
    else:
        for side in sides:
            begun = f", {_minute(side.begun)} UTC" if side.begun else ""
            yield Note(labels[side.name], f"{side.name} ({side.experiment}{begun})")
    for verdict in _FIRST:
        if any(cell.verdict == verdict for cell in comparison.cells):
            yield Note(verdict, VERDICTS[verdict])
    if comparison.by_date:
        return
    for side in sides[1:]:
        for key, values in find_differing(sides[0].facts, side.facts).items():
            yield Note(f"{labels[side.name]} differs in {key}", _show_change(values))


def _show_change(values: tuple[Sequence[str], Sequence[str]]) -> str:
    """``2.13.0 -> 2.14.0``."""
    shown = []
    for side in values:
        more = len(side) - _MOST_VALUES
        text = "; ".join(side[:_MOST_VALUES]) or "unknown"
        shown.append(f"{text} and {more} more" if more > 0 else text)
    return one_line(" -> ".join(shown))


def _make_grid(comparison: Comparison) -> Grid:
    """A row for each cell of each side but the first, by verdict.

    By date, these are the rows of the newest run and those that changed.
    """
    labels, newest = _labels(comparison), comparison.sides[-1]
    by_date, margin = comparison.by_date, comparison.margin
    cells = [
        cell
        for cell in comparison.cells
        if cell.verdict != NO_NUMBER
        and (not by_date or cell.side is newest or _has_changed(cell, margin))
    ]
    order = {verdict: place for place, verdict in enumerate(VERDICTS)}
    ids = {name: place for place, name in enumerate(dict.fromkeys(c.id for c in cells))}
    is_pair = len(comparison.sides) == 2
    cells.sort(key=lambda c: (order[c.verdict] if is_pair else 0, ids[c.id]))
    columns = {
        "cell": [Text(cell.id) for cell in cells],
        "of": [
            Text(labels[cell.side.name])
            if by_date
            else Text(f"{labels[cell.side.name]} / {labels[cell.base.name]}")
            for cell in cells
        ],
        "ratio": [show_estimate(cell.ratio) for cell in cells],
        "verdict": [Text(cell.verdict) for cell in cells],
        "base": [_show_launches(cell.old) for cell in cells],
        "throughput": [_show_launches(cell.new, "/s") for cell in cells],
        "note": [_remark(comparison, cell) for cell in cells],
    }
    shown = {name: own for name, own in columns.items() if any(map(str, own))}
    rows = list(zip(*shown.values(), strict=True))
    return Grid("Cells", {name: name == "ratio" for name in shown}, rows)


def _has_changed(cell: ComparedCell, margin: float) -> bool:
    """Whether its bracket is beyond the margin of equality, or it lost its number."""
    ends = cell.ratio and cell.ratio.interval
    return cell.verdict == LOST or bool(
        ends and (ends[1] < 1 / (1 + margin) or ends[0] > 1 + margin)
    )


def _remark(comparison: Comparison, cell: ComparedCell) -> Text:
    """What is missing for a verdict; by date also what changed: a hint, no proof."""
    parts = [cell.why] if cell.why else []
    if comparison.by_date:
        changes = cell.differs.items()
        parts += [f"{key}: {_show_change(values)}" for key, values in changes]
    return Text("; ".join(parts))


def _show_launches(cell: CellLaunches | None, per: str = "") -> Text:
    """``812.3 samples/s (6)`` of the launches that count, or why there is no number.

    Args:
        per: behind the unit, which is left out without it.
    """
    if cell is None:
        return Text("")
    if cell.mean is None:
        return Text(cell.status)
    of = len(cell.throughput)
    counted = f"{of}" if of == cell.launches else f"{of} of {cell.launches}"
    unit = f" {cell.unit}{per}" if per else ""
    return Text(f"{figures(cell.mean)}{unit} ({counted})")


def _summarise(comparison: Comparison) -> Iterator[str]:
    """How many cells have which verdict, and what that means."""
    counts = Counter(cell.verdict for cell in comparison.cells)
    said = "; ".join(f"{counts[one]} {one}" for one in VERDICTS if counts[one])
    yield f"{said}, at {100 * comparison.confidence:g} % confidence"
    for verdict, meaning in VERDICTS.items():
        if counts[verdict] and verdict not in (*_FIRST, NO_NUMBER):
            yield f"  {verdict}: {meaning}"
    if counts[EQUAL]:
        yield f"  the margin of equality is {100 * comparison.margin:g} %"
    every = dict.fromkeys(name for side in comparison.sides for name in side.cells)
    labels = _labels(comparison)
    for side in comparison.sides:
        if names := [name for name in every if name not in side.cells]:
            yield f"not in {labels[side.name]}: {', '.join(names)}"


def _draw(comparison: Comparison, question: str, width: float) -> Figure:
    """The throughput of each cell through all sides: a panel for each cell."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    labels, sides = _labels(comparison), comparison.sides
    ids = list(dict.fromkeys(str(row[0]) for row in _make_grid(comparison).rows))
    figure, grid = plotting.make_figure(
        [_HEIGHT] * min(_MOST_PANELS, len(ids)) or [1.0], width=width, question=question
    )
    colors: dict[str, str] = {}
    for (axes,), name in zip(grid, ids, strict=False):
        plotting.write_title(axes, name)
        before = None
        for place, side in enumerate(sides):
            cell = side.cells.get(name)
            if cell is None or cell.mean is None:
                continue
            axes.set_ylabel(f"{cell.unit}/s")
            color = colors.setdefault(_name_machine(cell), f"C{len(colors)}")
            at = _day(side) if comparison.by_date else place
            style = plotting.Style(color, "o")
            plotting.draw_launches(
                axes, [at] * len(cell.throughput), cell.throughput, style
            )
            axes.plot([at], [cell.mean], "_", ms=14, color=color)
            if before and comparison.by_date and before.facts != cell.facts:
                axes.axvline(at, color="0.5", ls="--", lw=1)
            before = cell
        if comparison.by_date:
            dates = AutoDateLocator()
            axes.xaxis.set_major_locator(dates)
            axes.xaxis.set_major_formatter(ConciseDateFormatter(dates))
        else:
            axes.set_xticks(range(len(sides)), list(labels.values()))
            axes.set_xlim(-0.5, len(sides) - 0.5)
    lines = [plotting.make_line(name, color=color) for name, color in colors.items()]
    few = f"the first {_MOST_PANELS} of {len(ids)} cells"
    plotting.add_legend(figure, lines, few if len(ids) > _MOST_PANELS else "")
    return figure


def _day(side: Side) -> float:
    """The place of a run on an axis of dates."""
    return datetime.fromisoformat(side.begun).timestamp() / 86400


def _name_machine(cell: CellLaunches) -> str:
    """``16 cores of AMD EPYC 9654, 755 GiB, 8 x NVIDIA H100``."""
    cpu, cores, memory, gpus = (
        one_line("; ".join(cell.facts.get(key, ())) or "unknown") for key in OF_MACHINE
    )
    said = f"{cores} cores of {cpu}, {memory} GiB"
    return said if gpus in ("none", "unknown") else f"{said}, {gpus}"
