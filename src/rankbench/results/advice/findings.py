"""What an answer holds, how the best row is chosen, and what would tell it from others.

`answer.json` has the values of an answer under the names that they have here.
Estimates are objects of value, low and high; `low` and `high` are null without an
interval. Ids of cells are keys of `names`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from rankbench.results.numbers import statistics
from rankbench.results.numbers.losses import Loss
from rankbench.results.numbers.result_set import UNPAIRED, Summary
from rankbench.results.numbers.statistics import (
    MIN_LAUNCHES,
    Estimate,
    Fit,
    LogRatio,
    confidence_of_each,
    round_off,
)

ANSWER_VERSION = 2

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
    launches: int | None


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
class Measured:
    """When and where the launches of a workload ran.

    Attributes:
        launches: the fewest and the most of a row that count.
        disturbed: launches that are left out, as far slower than their round explains.
        repeated: launches that another one replaces.
        done, wanted: launches of all rows of the workload that can run here.
        old: rows whose numbers are of before the experiment changed.
        seconds_left: that a run of all that is missing will probably take.
    """

    days: Sequence[str]
    launches: Sequence[int]
    disturbed: int
    repeated: int
    hosts: int
    machines: Sequence[str]
    done: int
    wanted: int
    old: Sequence[str]
    seconds_left: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How a row trains: what must be equal for speeds to be all that differs.

    Attributes:
        samples: of a step, of all replicas.
        loss: of the curve, after `Workload.seconds`: median of the launches, the
            lowest and the highest; None if it is not known.
    """

    cell: str
    precision: str
    is_lossy: bool
    samples: int
    loss: Sequence[float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """How far a series keeps its efficiency.

    Attributes:
        cells: all sizes, with the base on one device.
        largest: the cell up to which the efficiency is above the wanted one, or None.
        end: the first one that is not, or None.
        is_below: whether that one is below; else it cannot be told.
    """

    series: str
    cells: Sequence[str]
    largest: str | None
    end: str | None
    is_below: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """What weakens rows that the answer rests on."""

    cells: Sequence[str]
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class More:
    """Launches that a cell lacks to settle a question."""

    cell: str
    launches: int
    more: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NextLaunches:
    """The launches that would probably settle a question, and their cost."""

    settles: str
    cells: Sequence[More]
    device_hours: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The answer for one workload.

    Attributes:
        workload: what is trained.
        unit: of throughput: samples/s or tokens/s.
        device: core or GPU, or device: several cores.
        rows: number of the rows that compete.
        names: cell -> its name in words.
        rates: cell -> its throughput, of the rows that compete, the fastest first.
        base: the cell that speedups are relative to, or None.
        devices, speedups, efficiencies: cell -> its number.
        undecided: why no row is called the best; None if one is.
        same_training: the fastest cell that has the precision and the samples of a step
            of the base, where the recommended row has not; or None.
        seconds: after which the losses of `training` are compared; None without them.
        training: of the recommended row and the base.
        costs: cell -> device-hours of a million samples or tokens, of the recommended
            row and the cheapest.
        untested: a usual rival that the experiment lacks, and how to add it; or None.
        lost: what a step of the recommended row takes longer than with efficiency 1.
        alike: sentences about settings that make no difference here.
    """

    workload: str
    unit: str
    device: str
    rows: int
    names: Mapping[str, str]
    rates: Mapping[str, Estimate]
    measured: Measured
    base: str | None = None
    devices: Mapping[str, int]
    speedups: Mapping[str, Estimate]
    efficiencies: Mapping[str, Estimate]
    undecided: str | None = None
    fastest: Choice | None = None
    cheapest: Choice | None = None
    costs: Mapping[str, Estimate] = field(default_factory=dict)
    same_training: str | None = None
    seconds: float | None = None
    training: Sequence[Training] = ()
    untested: str | None = None
    lost: Loss | None = None
    scaling: Sequence[Scaling] = ()
    trust: Sequence[Doubt] = ()
    alike: Sequence[str] = ()
    next: Sequence[NextLaunches] = ()

    @property
    def is_open(self) -> bool:
        """Whether no row is called the best, or another may be as good."""
        rivals = self.fastest.rivals if self.fastest else ()
        told = (EQUAL, LESS)
        return bool(self.undecided) or any(one.verdict not in told for one in rivals)


@dataclass(frozen=True, slots=True, kw_only=True)
class Without:
    """Rows that have no numbers for one reason."""

    status: str
    reason: str
    first: str
    cells: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer of a result directory.

    Attributes:
        source: how commands name it: its file, its override, the folder of its site.
        margin: rows that differ by less are equally good, as a share.
        efficiency: a topology is sensible if its efficiency is higher.
        price: of a device-hour, and its currency; or None.
        workloads: by what is trained.
        without_numbers: the other rows, by reason.
    """

    schema: int = ANSWER_VERSION
    experiment: str
    source: Mapping[str, Any]
    margin: float
    efficiency: float
    price: tuple[float, str] | None
    workloads: Sequence[Workload]
    without_numbers: Sequence[Without]


def choose_unit(hours: Estimate) -> tuple[int, str]:
    """Of device time: hours, or seconds if they are few; with the factor to it."""
    return (1, "hours") if hours.value >= 0.1 else (3600, "seconds")


def to_json(value: Any) -> Any:
    """Findings as JSON values."""
    if isinstance(value, Estimate):
        return value.to_json()
    if dataclasses.is_dataclass(value):
        names = (one.name for one in dataclasses.fields(value))
        return {name: to_json(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {name: to_json(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(one) for one in value]
    return round_off(value) if isinstance(value, float) else value


# --- choosing ------------------------------------------------------------------------


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
        return Rival(cell=name, ratio=None, verdict=APART, launches=None)
    bracket = ratio.bracket(confidence)
    told = statistics.judge(bracket, margin)
    if bracket.interval and told != statistics.UNTOLD:
        verdict = EQUAL if told == statistics.EQUAL else LESS
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
            if needed > len(rows[name].launches):
                own[name] = max(needed, own.get(name, 0))

    def launch_together(question: str, *names: str) -> None:
        """Ask for common rounds, as many as the first row has launches."""
        own = asked.setdefault(question, {})
        more = max(MIN_LAUNCHES, len(rows[names[0]].launches))
        for name in names:
            own[name] = max(len(rows[name].launches) + more, own.get(name, 0))

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
        more = launches - len(rows[name].launches)
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
    each = (record.get("seconds") or {} for record in summary.records)
    return fmean(one.get("launch") or 0.0 for one in each)
