"""Which row is the best, how the others compare, and what would tell them apart."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rankbench.record import fill_means, mean_seconds
from rankbench.results.numbers import statistics
from rankbench.results.numbers.result_set import UNPAIRED, Summary
from rankbench.results.numbers.statistics import Estimate, Fit, LogRatio

# What a row is, beside the best: certainly less; equal within the margin; or neither
# can be told; or it has too few launches to be judged; or it was not launched in the
# same rounds, so that nobody compares them.
LESS, EQUAL, UNTOLD, FEW, APART = "less", "equal", "untold", "few", "apart"

# The best row is not named if another may be better by more than this share.
_TOO_NOISY = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """A row beside the best one.

    Attributes:
        ratio: to the best row; None if they have no common rounds.
        verdict: as of `choose`.
        launches: of both that would probably settle it; None if nothing is open, or if
            they are too many.
    """

    cell: str
    ratio: Estimate | None
    verdict: str
    launches: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The best row by throughput, or by throughput of a device.

    Attributes:
        recommended: the best row, or a simpler one that is equal.
        rivals: all other rows, in descending order.
    """

    cell: str
    recommended: str
    rivals: Sequence[Rival]


@dataclass(frozen=True, slots=True, kw_only=True)
class NextLaunches:
    """The launches that would probably settle a question, and their cost.

    Attributes:
        cells: of each its id, its `launches` then, and how many `more` these are.
    """

    settles: str
    cells: Sequence[Mapping[str, Any]]
    device_hours: float
    seconds: float


def to_json(value: Any) -> Any:
    """Findings as JSON values; a row is its id."""
    if isinstance(value, Estimate):
        return value.to_json()
    if isinstance(value, Summary):
        return value.id
    if dataclasses.is_dataclass(value):
        names = (one.name for one in dataclasses.fields(value))
        return {name: to_json(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {name: to_json(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(one) for one in value]
    return statistics.round_off(value) if isinstance(value, float) else value


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
    confidence = statistics.confidence_of_each(math.comb(len(heights), 2), look=look)
    others = (name for name in heights if name != best)
    order = sorted(others, key=lambda name: -heights[name])
    apart = [name for name in factors if name not in heights]
    judged = [
        _judge(name, find(name, best), margin, confidence) for name in order + apart
    ]
    return best, sorted(judged, key=lambda one: one.ratio is None)


def _judge(
    name: str, ratio: LogRatio | None, margin: float, confidence: float
) -> Rival:
    if ratio is None:
        return Rival(cell=name, ratio=None, verdict=APART)
    bracket = ratio.bracket(confidence)
    told = statistics.judge(bracket, margin)
    if bracket.interval and told != statistics.UNTOLD:
        verdict = EQUAL if told == statistics.EQUAL else LESS
        return Rival(cell=name, ratio=bracket, verdict=verdict)
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
    ends: Iterable[Summary],
    wanted: float,
) -> list[NextLaunches]:
    """For each open question, the launches that would settle it, and their cost.

    Args:
        rows: of the workload, by id.
        choices: question -> the best row with its rivals.
        ends: rows of which nobody can tell whether their efficiency is the wanted one.
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
            if needed > len(rows[name].launches):
                own[name] = max(needed, own.get(name, 0))

    def launch_together(question: str, *names: str) -> None:
        """Ask for common rounds, as many as the first row has launches."""
        own = asked.setdefault(question, {})
        more = max(statistics.MIN_LAUNCHES, len(rows[names[0]].launches))
        for name in names:
            own[name] = max(len(rows[name].launches) + more, own.get(name, 0))

    for question, choice in choices.items():
        for rival in choice.rivals:
            if rival.verdict == APART:
                launch_together(question, choice.cell, rival.cell)
            elif rival.verdict in (UNTOLD, FEW):
                ask(question, rival.launches, choice.cell, rival.cell)
    for end in ends:
        base = end.efficiency_base
        if base and base.id in rows:
            ratio = end.fit and end.fit.ratio(end.id, base.id)
            assert ratio
            distance = abs(math.log(wanted / end.numbers["efficiency"].value))
            launches = ratio.launches_for(distance, end.confidence)
            ask("scaling", launches, end.id, base.id)
    for name, summary in rows.items():
        for base in summary.bases if UNPAIRED in summary.marks else ():
            if base.id in rows and base.id != name:
                launch_together("scaling", base.id, name)
    return [_describe(question, rows, own) for question, own in asked.items() if own]


def _describe(
    question: str, rows: Mapping[str, Summary], asked: Mapping[str, int]
) -> NextLaunches:
    more = {name: count - len(rows[name].launches) for name, count in asked.items()}
    each = seconds_of(rows.values())
    seconds = {name: more[name] * each.get(name, 0.0) for name in asked}
    held = sum(seconds[name] * rows[name].devices for name in asked)
    return NextLaunches(
        settles=question,
        cells=[
            {"cell": name, "launches": launches, "more": more[name]}
            for name, launches in asked.items()
        ],
        device_hours=statistics.round_off(held / 3600),
        seconds=statistics.round_off(sum(seconds.values())),
    )


def seconds_of(rows: Iterable[Summary]) -> dict[str, float]:
    """How long a launch of each row takes, with all that is not measured."""
    launches = {r.id: r.launches if len(r.launches) else r.partial for r in rows}
    return fill_means({n: mean_seconds(f["record"]) for n, f in launches.items()})
