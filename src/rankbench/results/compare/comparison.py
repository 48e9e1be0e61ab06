"""Compare two or more sides, cell by cell.

Each side is compared with the first one, or, by date, with the run before it. Only
launches that took turns say whether one cell is better than another: a ratio across
runs is also that of two days, and across machines that of two machines. If a share is
asked for, a machine is judged, on whatever day: each row must keep that share.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import numpy as np

from rankbench.results.compare.sides import (
    CellLaunches,
    Differences,
    Side,
    find_differing,
)
from rankbench.results.elements import plotting
from rankbench.results.elements.section import Drawing, make_grid, spell_ends
from rankbench.results.elements.text import Grid, Note, figures, one_line
from rankbench.results.numbers import statistics
from rankbench.results.numbers.statistics import Estimate, LogRatio

FAIL, UNDECIDED, PASS = "FAIL", "UNDECIDED", "PASS"
WORSE, LOST, BETTER, EQUAL, UNTOLD = "worse", "lost", "better", "equal", "cannot tell"
OTHER_MACHINE, OTHER_SESSION = "another machine", "another session"
SAME, TOO_FEW, GAINED = "the same launches", "too few launches", "gained"
CHANGED, NO_NUMBER = "changed", "no number"

# Verdict -> its meaning, in the order of the output.
VERDICTS = {
    FAIL: "the bracket is below the share, or the row was tried and has no number",
    WORSE: "slower: the bracket is below 1",
    LOST: "has no number any more",
    UNDECIDED: "the bracket includes the share, or there is none",
    BETTER: "faster: the bracket is above 1",
    EQUAL: "the bracket includes 1, and is within the margin of equality",
    UNTOLD: "the bracket includes 1: these launches cannot tell",
    OTHER_MACHINE: "the ratio is that of two machines: it says nothing about code",
    OTHER_SESSION: "their launches took no turns, so the day may be the cause",
    PASS: "the bracket is above the share",
    SAME: "one is a copy of the other: nothing was compared",
    TOO_FEW: f"needs {statistics.MIN_LAUNCHES} launches or more on both sides",
    GAINED: "has a number for the first time",
    CHANGED: "defined otherwise: not compared",
    NO_NUMBER: "there is no number to compare with",
}

# Facts of hosts that make them another machine. Hosts of a cluster are alike.
OF_MACHINE = ("cpu", "cores", "memory (GiB)", "GPUs")

# A line with more values would be hard to read.
_MOST_VALUES = 4

# What a reader must know before any ratio.
_FIRST = (OTHER_MACHINE, SAME, OTHER_SESSION)

# A page with more plots would be hard to read. Inches of a plot.
_MOST_PANELS, _HEIGHT = 24, 1.6

# Statuses of a row that was tried and gave no number.
_FAILED = ("crashed", "oom", "timeout", "mismatch")


@dataclass(frozen=True, slots=True)
class ComparedCell:
    """A cell of a side beside the same cell of its base.

    Attributes:
        id: of the cell.
        base, side: where it is compared; `side` may lack the cell if a share is asked.
        verdict: one of `VERDICTS`.
        why: what is missing for a verdict; empty if nothing is.
        took_turns: whether launches of the same rounds were compared.
        ratio: its throughput over that of the base, with a bracket; None unless both
            have a number.
    """

    id: str
    base: Side
    side: Side
    verdict: str
    why: str
    took_turns: bool
    ratio: Estimate | None = None

    @property
    def old(self) -> CellLaunches:
        return self.base.cells[self.id]

    @property
    def new(self) -> CellLaunches | None:
        return self.side.cells.get(self.id)

    @property
    def differs(self) -> Differences:
        """Facts of hosts, software, image and code that differ."""
        return find_differing(self.old.facts, self.new.facts) if self.new else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two or more sides, compared.

    Attributes:
        cells: of each side but the first, in the order of the sides.
        confidence: that all brackets hold at once; by date, all of one run.
        margin: of equality: a bracket that includes 1 is within 1 +- this share.
        at_least: the ratio that every row must reach; None if none is asked.
        by_date: whether each run is compared with the one before it.
    """

    sides: Sequence[Side]
    cells: Sequence[ComparedCell]
    confidence: float
    margin: float
    at_least: float | None
    by_date: bool

    @property
    def verdict(self) -> str:
        """Of all cells, by date of those of the newest run: one that fails suffices."""
        news = [cell for cell in self.cells if cell.side is self.sides[-1]]
        found = {cell.verdict for cell in (news if self.by_date else self.cells)}
        if found & {FAIL, WORSE, LOST}:
            return FAIL
        if self.at_least is None:
            return PASS if found & {BETTER, EQUAL, UNTOLD} else UNDECIDED
        return PASS if found - {NO_NUMBER} == {PASS} else UNDECIDED


def compare(
    sides: Sequence[Side],
    *,
    at_least: float | None = None,
    by_date: bool = False,
    confidence: float = statistics.CONFIDENCE,
    margin: float = statistics.MARGIN,
) -> Comparison:
    """Compare the throughput of cells that sides have in common.

    Args:
        sides: two or more.
        at_least: judge each row of the base that has a number: it passes if the bracket
            of its ratio is above this share, and fails if it is below.
        by_date: compare each run with the one before it that has a number for a cell.
        confidence: that all brackets hold at once.
        margin: of equality: a bracket that includes 1 is within 1 +- this share.

    Raises:
        ValueError: an argument makes no sense, or no cell can be compared.
    """
    for place, side in enumerate(sides):
        if side.name in [other.name for other in sides[:place]]:
            raise ValueError(f"{side.name} is named twice: its launches are the same")
        if by_date and not side.begun:
            raise ValueError(f"{side.name} does not say when it was measured")
    if by_date:
        sides = sorted(sides, key=lambda side: side.begun)
    groups = []
    for place, side in enumerate(sides[1:]):
        before = sides[place::-1] if by_date else sides[:1]
        groups.append([*_pair_up(side, before, of_base=at_least is not None)])
    if not by_date:
        groups = [[pair for group in groups for pair in group]]
    cells = []
    # By date, brackets of each run hold together: a long history costs no power.
    for group in groups:
        judged = sum(not cell.verdict for cell, _ in group)
        each = statistics.confidence_of_each(judged, confidence)
        cells += [
            _judge(cell, ratio, each, margin)
            if at_least is None
            else _judge_share(cell, ratio, each, at_least)
            for cell, ratio in group
        ]
    return Comparison(
        sides=sides,
        cells=cells,
        confidence=confidence,
        margin=margin,
        at_least=at_least,
        by_date=by_date,
    )


def _pair_up(
    side: Side, before: Sequence[Side], *, of_base: bool
) -> Iterator[tuple[ComparedCell, LogRatio | None]]:
    """The cells of a side with their ratios; a verdict if no bracket is needed for it.

    Args:
        before: what it may be compared with; the first that has a number counts.
        of_base: whether cells of the base count that the side lacks.
    """
    names = dict.fromkeys([*side.cells, *(before[0].cells if of_base else ())])
    bases = {name: [one for one in before if name in one.cells] for name in names}
    if not any(bases[name] for name in side.cells):
        raise ValueError(f"{before[0].name} and {side.name} have no cell in common")
    if of_base and not any(cell.throughput for cell in before[0].cells.values()):
        raise ValueError(f"{before[0].name}: no row has a throughput")
    for name, having in bases.items():
        if having:
            measured = (one for one in having if one.cells[name].throughput)
            base = next(measured, having[0])
            old, new = base.cells[name], side.cells.get(name)
            verdict, why = _find_obstacle(old, new, side.name)
            ratio, took_turns = None, False
            if new and verdict in ("", TOO_FEW):
                ratio, took_turns = _find_ratio(old, new)
            yield ComparedCell(name, base, side, verdict, why, took_turns), ratio


def _find_obstacle(
    old: CellLaunches, new: CellLaunches | None, name: str
) -> tuple[str, str]:
    """What keeps a cell from being judged, as a verdict and in words; or empty ones."""
    if new is None:
        return LOST, f"not in {name}"
    if old.hash and new.hash and old.hash != new.hash:
        return CHANGED, "defined otherwise"
    if not old.throughput:
        return GAINED if new.throughput else NO_NUMBER, f"the base: {old.status}"
    if not new.throughput:
        return LOST, f"{new.status}: {new.reason}" if new.reason else new.status
    if old.unit != new.unit:
        return CHANGED, f"{new.unit}/s; the base has {old.unit}/s"
    if old.identities & new.identities:
        return SAME, "both sides have the same launches"
    alone = old if not old.is_published else new
    if (
        few := min(len(new.throughput), len(alone.throughput))
    ) < statistics.MIN_LAUNCHES:
        return TOO_FEW, f"{few} launches; {statistics.MIN_LAUNCHES} are needed"
    return "", ""


def _find_ratio(old: CellLaunches, new: CellLaunches) -> tuple[LogRatio, bool]:
    """The ratio of two cells, and whether their launches took turns."""
    if not old.is_published:
        sides = {"old": old.by_round, "new": new.by_round}
        found = statistics.Fit(sides).ratio("new", "old")
        rates = new.throughput, old.throughput
        return found or statistics.ratio_of_samples(*rates), found is not None
    logs, error = np.log(new.throughput) - math.log(old.throughput[0]), math.inf
    if len(logs) >= statistics.MIN_LAUNCHES:
        error = float(logs.std(ddof=1)) / math.sqrt(len(logs))
    freedom = max(1, len(logs) - 1)
    value = float(logs.mean())
    return LogRatio(value, error, freedom, len(logs), own=error**2), False


def _judge(
    cell: ComparedCell, found: LogRatio | None, confidence: float, margin: float
) -> ComparedCell:
    """The cell with the verdict on its code, if its launches took turns."""
    ratio, verdict = found.bracket(confidence) if found else None, cell.verdict
    if ratio and not verdict:
        verdict = BETTER if ratio.value > 1 else WORSE
        if ratio.interval is None:
            verdict = TOO_FEW
        elif cell.differs.keys() & {*OF_MACHINE}:
            verdict = OTHER_MACHINE
        elif not cell.took_turns:
            verdict = OTHER_SESSION
        elif told := statistics.judge(ratio, margin):
            verdict = EQUAL if told == statistics.EQUAL else UNTOLD
    return replace(cell, verdict=verdict, ratio=ratio)


def _judge_share(
    cell: ComparedCell, found: LogRatio | None, confidence: float, at_least: float
) -> ComparedCell:
    """The cell with the verdict on the machine: whether it keeps a share."""
    ratio = found.bracket(confidence) if found else None
    verdict, why = UNDECIDED, cell.why
    ends = ratio and ratio.printed()[0].interval
    if not cell.old.throughput:
        verdict = NO_NUMBER
    elif cell.verdict:
        if cell.new and cell.new.status in _FAILED:
            verdict = FAIL
    elif found and cell.new and ends:
        if not ends[0] <= at_least <= ends[1]:
            verdict = PASS if ends[0] > at_least else FAIL
        else:
            distance, alone = abs(found.value - math.log(at_least)), cell.new.throughput
            more = found.launches_for(distance, confidence, alone=len(alone))
            about = f"about {more}" if more else f"not even {statistics.MOST_LAUNCHES}"
            why = f"{about} launches would decide"
    elif found:
        why = f"{found.launches} launches count; {statistics.MIN_LAUNCHES} are needed"
    return replace(cell, verdict=verdict, ratio=ratio, why=why)


# --- in words, as a table, as JSON, and as a page with a plot -------------------------


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

    asked = (
        "When did the speed change"
        if comparison.by_date
        else "Which run is the fastest"
    )
    drawing = Drawing(
        name=path.stem,
        question=f"{asked}?",
        caption=(
            "Each dot is a launch, each bar the mean of a run. Colors are machines. "
            "Dashed: software, image or code changed. The table has the verdicts."
        ),
        make=partial(_draw, comparison),
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
    rows = [
        {
            "cell": cell.id,
            "of": labels[cell.side.name]
            + ("" if by_date else f" / {labels[cell.base.name]}"),
            "ratio": cell.ratio,
            "verdict": cell.verdict,
            "base": _show_launches(cell.old),
            "throughput": _show_launches(cell.new, "/s"),
            "note": _remark(cell, by_date=by_date),
        }
        for cell in cells
    ]
    return make_grid("Cells", rows)


def _has_changed(cell: ComparedCell, margin: float) -> bool:
    """Whether its bracket is beyond the margin of equality, or it lost its number."""
    ends = cell.ratio and cell.ratio.interval
    return cell.verdict == LOST or bool(
        ends and (ends[1] < 1 / (1 + margin) or ends[0] > 1 + margin)
    )


def _remark(cell: ComparedCell, *, by_date: bool) -> str:
    """What is missing for a verdict; by date also what changed: a hint, no proof."""
    parts = [cell.why] if cell.why else []
    if by_date:
        changes = cell.differs.items()
        parts += [f"{key}: {_show_change(values)}" for key, values in changes]
    return "; ".join(parts)


def _show_launches(cell: CellLaunches | None, per: str = "") -> str:
    """``812.3 samples/s (6)`` of the launches that count, or why there is no number.

    Args:
        per: behind the unit, which is left out without it.
    """
    if cell is None or cell.mean is None:
        return cell.status if cell else ""
    of = len(cell.throughput)
    counted = f"{of}" if of == cell.launches else f"{of} of {cell.launches}"
    unit = f" {cell.unit}{per}" if per else ""
    return f"{figures(cell.mean)}{unit} ({counted})"


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


def _draw(comparison: Comparison, width: float) -> plotting.Figure:
    """The throughput of each cell through all sides: a panel for each cell."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    labels, sides = _labels(comparison), comparison.sides
    ids = list(dict.fromkeys(str(row[0]) for row in _make_grid(comparison).rows))
    heights = [_HEIGHT] * min(_MOST_PANELS, len(ids)) or [1.0]
    figure, grid = plotting.make_figure(heights, width=width)
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
            begun = side.begun if comparison.by_date else ""
            # A day is the unit of an axis of dates.
            at = datetime.fromisoformat(begun).timestamp() / 86400 if begun else place
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


def _name_machine(cell: CellLaunches) -> str:
    """``16 cores of AMD EPYC 9654, 755 GiB, 8 x NVIDIA H100``."""
    cpu, cores, memory, gpus = (
        one_line("; ".join(cell.facts.get(key, ())) or "unknown") for key in OF_MACHINE
    )
    said = f"{cores} cores of {cpu}, {memory} GiB"
    return said if gpus in ("none", "unknown") else f"{said}, {gpus}"
