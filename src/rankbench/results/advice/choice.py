"""The best of several rows, which others cannot be told apart, and what would tell."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from rankbench.results.advice.findings import Choice, More, NextLaunches, Rival, Scaling
from rankbench.results.numbers import fit as fits
from rankbench.results.numbers.fit import Fit, LogRatio, confidence_of_each
from rankbench.results.numbers.statistics import (
    MIN_LAUNCHES,
    round_off,
)
from rankbench.results.numbers.summary import UNPAIRED, Summary

# What a row is, beside the best: certainly less; equal within the margin; or neither
# can be told; or it has too few launches to be judged; or it was not launched in the
# same rounds, so that nobody compares them.
LESS, EQUAL, UNTOLD, FEW, APART = "less", "equal", "untold", "few", "apart"

# The best row is not named if another may be better by more than this share.
_TOO_NOISY = 0.25


def choose(
    fit: Fit, factors: Mapping[str, float], margin: float, *, look: int = 1
) -> tuple[str, list[Rival]]:
    """Find the best of several rows, and compare all others with it.

    Rows are compared if they were launched in the same rounds; of several sets of such
    rows, the largest counts. The brackets of all pairs of its rows hold together,
    because the same launches choose the row that the others are compared with.

    Args:
        fit: of the launches of these rows, and perhaps of others.
        factors: of the throughput of each row, by name: 1, or one over its devices.
        margin: rows that differ by less are equally good: 0.03 for 3 %.
        look: number of times that launches were asked for.

    Returns:
        The name of the best, and the others in descending order, with those that are
        `APART` at the end. If all are `APART`, no row is the best.
    """
    paired = {
        name: [other for other in factors if fit.is_paired(other, name)]
        for name in factors
    }
    pivot = max(factors, key=lambda name: len(paired[name]))

    def find(name: str, base: str) -> LogRatio | None:
        if (ratio := fit.ratio(name, base)) is None:
            return None
        off = math.log(factors[name] / factors[base])
        return replace(ratio, value=ratio.value + off)

    ratios = ((name, find(name, pivot)) for name in paired[pivot])
    heights = {name: ratio.value for name, ratio in ratios if ratio}
    best = max(heights, key=lambda name: heights[name])
    confidence = confidence_of_each(math.comb(len(heights), 2), look=look)
    order = sorted(heights.keys() - {best}, key=lambda name: -heights[name])
    apart = [name for name in factors if name not in heights]
    judged = [
        _judge(name, find(name, best), margin, confidence) for name in order + apart
    ]
    return best, sorted(judged, key=lambda one: one.ratio is None)


def _judge(
    name: str, ratio: LogRatio | None, margin: float, confidence: float
) -> Rival:
    if ratio is None:
        return Rival(cell=name, ratio=None, verdict=APART, launches=None)
    bracket = ratio.bracket(confidence)
    told = fits.judge(bracket, margin)
    if bracket.interval and told != fits.UNTOLD:
        verdict = EQUAL if told == fits.EQUAL else LESS
        return Rival(cell=name, ratio=bracket, verdict=verdict, launches=None)
    # The ratio may turn out to differ from 1, or to be within the margin.
    off = abs(ratio.value)
    distance = max(off, math.log1p(margin) - off)
    launches = ratio.launches_for(distance, confidence)
    verdict = UNTOLD if bracket.interval else FEW
    return Rival(cell=name, ratio=bracket, verdict=verdict, launches=launches)


def find_noisy(rivals: Iterable[Rival]) -> Rival | None:
    """The row that may be so much better than the best that this one is not named."""

    def most(rival: Rival) -> float:
        return (rival.ratio and rival.ratio.printed()[0].high) or 0.0

    worst = max(rivals, key=most, default=None)
    return worst if worst and most(worst) > 1 + _TOO_NOISY else None


def find_end(
    points: Iterable[Summary], wanted: float
) -> tuple[list[Summary], Summary | None, bool]:
    """How far a series keeps its efficiency, by the brackets as they are printed.

    Args:
        points: of a series, with an efficiency.
        wanted: the efficiency that a topology should have.

    Returns:
        The points above it, by devices, up to the first that is not; that one, or None;
        and whether it is below: else it cannot be told.
    """
    above: list[Summary] = []
    for point in sorted(points, key=lambda one: one.devices):
        shown, _ = point.numbers["efficiency"].printed()
        if shown.low is None or shown.low <= wanted:
            return above, point, shown.high is not None and shown.high < wanted
        above.append(point)
    return above, None, False


def plan_next(
    rows: Mapping[str, Summary],
    choices: Mapping[str, Choice],
    scaling: Sequence[Scaling],
    wanted: float,
) -> list[NextLaunches]:
    """For each open question, the launches that would settle it, and their cost.

    Args:
        rows: of the workload, by id.
        choices: question -> the best row with its rivals.
        scaling: how far each series scales.
        wanted: the efficiency that a topology should have.
    """
    asked: dict[str, dict[str, int]] = {}

    def ask(question: str, launches: int | None, *names: str) -> None:
        """Ask for so many launches that count, beside the disturbed ones."""
        if launches is None:
            return  # Too many.
        own = asked.setdefault(question, {})
        for name in names:
            needed = launches + len(rows[name].disturbed)
            if needed > len(rows[name].measures):
                own[name] = max(needed, own.get(name, 0))

    def launch_together(question: str, *names: str) -> None:
        """Ask for common rounds, as many as the first row has launches."""
        own = asked.setdefault(question, {})
        more = max(MIN_LAUNCHES, len(rows[names[0]].measures))
        for name in names:
            own[name] = max(len(rows[name].measures) + more, own.get(name, 0))

    for question, choice in choices.items():
        for rival in choice.rivals:
            if rival.verdict == APART:
                launch_together(question, choice.cell, rival.cell)
            elif rival.verdict in (UNTOLD, FEW):
                ask(question, rival.launches, choice.cell, rival.cell)
    for name in [one.end for one in scaling if one.end and not one.is_below]:
        summary = rows.get(name)
        base = summary and summary.efficiency_base
        if summary and base and base.id in rows:
            assert summary.fit is not None
            ratio = summary.fit.ratio(name, base.id)
            assert ratio is not None
            distance = abs(math.log(wanted / summary.numbers["efficiency"].value))
            launches = ratio.launches_for(distance, summary.confidence)
            ask("scaling", launches, name, base.id)
    for name, summary in rows.items():
        for base in summary.bases if UNPAIRED in summary.marks else ():
            if base.id in rows and base.id != name:
                launch_together("scaling", base.id, name)
    return [_describe(question, rows, own) for question, own in asked.items() if own]


def _describe(
    question: str, rows: Mapping[str, Summary], asked: Mapping[str, int]
) -> NextLaunches:
    cells, seconds, held = [], 0.0, 0.0
    for name, launches in asked.items():
        more = launches - len(rows[name].measures)
        each = more * mean_seconds(rows[name])
        seconds, held = seconds + each, held + each * rows[name].devices
        cells.append(More(cell=name, launches=launches, more=more))
    return NextLaunches(
        settles=question,
        cells=cells,
        device_hours=round_off(held / 3600),
        seconds=round_off(seconds),
    )


def mean_seconds(summary: Summary) -> float:
    """How long a launch of a row takes, with all that is not measured."""
    records = (launch.record for launch in summary.launches)
    return fmean((r.get("seconds") or {}).get("launch") or 0.0 for r in records)
