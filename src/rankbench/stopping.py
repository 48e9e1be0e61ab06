"""When a cell has enough launches: jobs and tables both ask this module.

Standard library only. A decision follows from the plan and the records alone, so
`rankbench verify` can derive it again. A rule looks at the launches only after 8, 12,
18, 27 and 40 of them: who looks after every launch and stops at the first good moment
stops at a lucky one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist, fmean, median, stdev
from typing import Any, NamedTuple

from rankbench.cell import Cell
from rankbench.record import Record, counting, judge_gated, round_of

# Of the intervals of a throughput, over all looks of a rule.
CONFIDENCE = 0.95

# `best` may drop the fastest cell this often, over all looks and rivals.
ERROR = 0.05

FIRST_LOOK = 8
_GROWTH = 1.5

FIXED, UNTIL, BEST = "fixed", "until", "best"

# Begin of the reason of a cell that the budget ended.
BUDGET = "budget"

# An interval shrinks with the root of the number of launches. A cell whose interval at
# the last look would be so many times wider than the target is given up before.
_HOPELESS = 2.0

# Fewer launches, or rounds in common, say nothing yet.
FEWEST_LAUNCHES = 6


@dataclass(frozen=True, slots=True)
class Rule:
    """How many launches a cell gets.

    Attributes:
        at_most: the number of launches; under `until` and `best`, the largest number.
        kind: ``fixed``; ``until`` the interval of the throughput is narrow; or
            ``best``, which drops cells that are slower than the fastest.
        target: of `until`: half the width of the interval, as a share of the mean;
            of `best`: what two cells may differ by and still be equally good. None if
            the number is fixed.
    """

    at_most: int
    kind: str = FIXED
    target: float | None = None

    @classmethod
    def read(cls, value: int | Mapping[str, Any]) -> Rule:
        """Read the value of `launches` in an experiment, a plan, a request or a record.

        Args:
            value: ``6``, or such as ``{"until": "3%", "at_most": 40}``.

        Raises:
            ValueError: it is neither, or has not one share between 0 and 1.
        """
        if isinstance(value, int):
            return cls(value)
        kinds = [kind for kind in (UNTIL, BEST) if kind in value]
        if len(kinds) != 1 or set(value) != {kinds[0], "at_most"}:
            raise ValueError(
                f"launches: give {UNTIL} or {BEST}, one of them, and at_most, not "
                f"{value!r}"
            )
        (kind,) = kinds
        text = str(value[kind])
        try:
            share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            share = math.nan
        if not 0 < share < 1:
            raise ValueError(
                f"launches.{kind}: expected a share of more than 0 and less than "
                f"100 %, such as 3%, got {value[kind]!r}"
            )
        return cls(int(value["at_most"]), kind, share)

    def to_json(self) -> int | dict[str, Any]:
        """What `read` reads."""
        if self.target is None:
            return self.at_most
        return {self.kind: self.target, "at_most": self.at_most}

    @property
    def looks(self) -> list[int]:
        """The numbers of launches after which the cell is judged, ascending."""
        if self.kind == FIXED:
            return [self.at_most]
        found, look = [], FIRST_LOOK
        while look < self.at_most:
            found.append(look)
            look = int(look * _GROWTH)
        return [*found, self.at_most]


class StopReason(NamedTuple):
    """Why a cell needs no further launch.

    Attributes:
        after: the number of launches that count.
        why: in words, for the table.
    """

    after: int
    why: str


@dataclass(slots=True)
class LaunchHistory:
    """The launches of one attempt of a cell, as far as the rules read them.

    Attributes:
        rule: how many there shall be.
        cell: what was launched. The base of speedups is never dropped.
        records: of all its launches, or `brief` ones.
        beside: records of launches that are not measured, such as the gate's.
    """

    rule: Rule
    cell: Cell
    records: list[Record] = field(default_factory=list)
    beside: list[Record] = field(default_factory=list)

    @property
    def counted(self) -> list[Record]:
        return counting(self.records)


def brief(record: Record) -> Record:
    """The part of a record that verdicts and stopping rules read.

    The supervisor of a thousand cells keeps these, not the records.
    """
    kept = (
        *("status", "reason", "cause", "launch", "round", "samples"),
        *("repeats", "shape", "surroundings", "devices"),
    )
    found = {key: record[key] for key in kept if key in record}
    found["ranks"] = [{"window_s": r["window_s"]} for r in record.get("ranks") or ()]
    found["seconds"] = {"launch": (record.get("seconds") or {}).get("launch")}
    return found


def rate(record: Record) -> float | None:
    """Samples per second of the slowest rank over the timed window; None without it.

    The table leaves out steps before the steady state; a job has no time to find it.
    """
    windows = [rank["window_s"] for rank in record.get("ranks") or ()]
    if record["status"] != "ok" or not windows or not max(windows) > 0:
        return None
    return float(record["samples"]) / float(max(windows))


def find_enough(
    cells: Mapping[str, LaunchHistory], *, budget: float | None = None
) -> dict[str, StopReason]:
    """Find the cells that need no further launch, and why.

    Args:
        cells: by id, those that were asked for.
        budget: device-seconds of all launches together; None for no limit.

    Returns:
        Reasons by id. A cell with a fixed number of launches, or with too few for the
        first look, has none unless the budget is spent.
    """
    found: dict[str, StopReason] = {}
    workloads: dict[str, dict[str, LaunchHistory]] = {}
    for name, cell in cells.items():
        if cell.rule.kind == UNTIL and (stop := _stop_at_width(cell)):
            found[name] = stop
        elif cell.rule.kind == BEST:
            verdict = judge_gated(cell.beside, cell.records, cell.rule.at_most)
            if not verdict.complete or verdict.status == "ok":
                # It has a number, or may have one.
                workloads.setdefault(cell.cell.workload(), {})[name] = cell
    for rivals in workloads.values():
        found |= _find_best(rivals)
    if budget is not None:
        found |= _stop_at_budget(cells, found, budget)
    return found


def _stop_at_width(cell: LaunchHistory) -> StopReason | None:
    """The first look with a narrow or hopelessly wide interval, or the last one."""
    counted, rule = cell.counted, cell.rule
    assert rule.target is not None
    confidence = 1 - (1 - CONFIDENCE) / len(rule.looks)
    for look in rule.looks:
        if len(counted) < look:
            return None
        rates = [rate(record) for record in counted[:look]]
        known = [value for value in rates if value is not None]
        if len(known) < look:
            return StopReason(look, f"after {look}: {look - len(known)} failed")
        width = half_width(known, confidence)
        if width is None or look == rule.at_most:
            continue
        if width <= rule.target:
            return StopReason(look, f"reached {100 * width:.2g} %")
        if width * math.sqrt(look / rule.at_most) > _HOPELESS * rule.target:
            return StopReason(
                look, f"after {look}: {100 * width:.2g} %, too wide to reach"
            )
    if width is not None and width <= rule.target:
        return StopReason(rule.at_most, f"reached {100 * width:.2g} %")
    said = "no interval" if width is None else f"{100 * width:.2g} %"
    return StopReason(rule.at_most, f"at {rule.at_most}: {said}")


def half_width(values: Sequence[float], confidence: float = CONFIDENCE) -> float | None:
    """Distance from the geometric mean to the upper end of its interval, as a share.

    The interval is Student's t of the logarithms; None below 6 values.
    """
    if len(values) < FEWEST_LAUNCHES:
        return None
    logs = [math.log(value) for value in values]
    reach = _student((1 + confidence) / 2, len(logs) - 1) * stdev(logs)
    return math.exp(reach / math.sqrt(len(logs))) - 1


def _find_best(rivals: Mapping[str, LaunchHistory]) -> dict[str, StopReason]:
    """Compare the cells of a workload at each look, until one is the best.

    At each look, the ratios of two cells within their rounds give a one-sided bound of
    Student's t on the scale of logarithms. The error is shared by all rivals of a cell
    and by all looks, so the fastest cell is dropped with a probability of 5 % at most.
    A cell is dropped if its bound against the fastest shows that it is slower by more
    than the target. The search ends when the fastest is shown to be slower than none
    of the others by more than the target.
    """
    found: dict[str, StopReason] = {}
    rule = next(iter(rivals.values())).rule
    assert rule.target is not None
    rates = {name: _by_round(name, cell.counted) for name, cell in rivals.items()}
    level = ERROR / len(rule.looks) / max(1, len(rivals) - 1)
    alive = list(rivals)
    for look in rule.looks:
        counts = {name: len(rivals[name].counted) for name in alive}
        if any(count < look for count in counts.values()):
            return found
        for name in alive:
            failed = sum(rate(r) is None for r in rivals[name].counted[:look])
            if failed:
                found[name] = StopReason(look, f"after {look}: {failed} failed")
        alive = [name for name in alive if name not in found]
        if not alive:
            return found
        seen = {name: dict(list(rates[name].items())[:look]) for name in alive}
        best = max(alive, key=lambda name: median(seen[name].values()))
        least = {
            name: _least_ratio(seen[best], seen[name], level)
            for name in alive
            if name != best
        }
        for name, bound in least.items():
            if bound * (1 - rule.target) > 1 and not rivals[name].cell.is_base:
                share = f"{1 / bound:.2g}"
                found[name] = StopReason(
                    look, f"dropped after {look}: at most {share} of the best"
                )
        alive = [name for name in alive if name not in found]
        lowest = min(least.values(), default=math.inf)
        if lowest >= 1 - rule.target:
            for name in alive:
                found[name] = StopReason(look, f"decided after {look}")
            said = f"best after {look}"
            if least:
                said += f": at least {min(lowest, 1.0):.2g} of every other"
            found[best] = StopReason(look, said)
            return found
    for name in alive:
        found[name] = StopReason(rule.at_most, f"at {rule.at_most}: not decided")
    return found


def _by_round(name: str, counted: Sequence[Record]) -> dict[tuple[Any, int], float]:
    """Round -> samples per second, in the order of the launches.

    A launch that was in no round has a key that no other cell has.
    """
    found: dict[tuple[Any, int], float] = {}
    for place, record in enumerate(counted):
        if (value := rate(record)) is not None:
            found[round_of(record) or (name, place)] = value
    return found


def _least_ratio(
    above: Mapping[Any, float], below: Mapping[Any, float], level: float
) -> float:
    """Lower bound of the ratio of two cells, from the rounds that both have."""
    logs = [math.log(above[turn] / below[turn]) for turn in above if turn in below]
    if len(logs) < FEWEST_LAUNCHES:
        return 0.0
    reach = _student(1 - level, len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
    return math.exp(fmean(logs) - reach)


def _student(share: float, degrees: int) -> float:
    """The quantile of Student's t, by its expansion in that of the normal distribution.

    Abramowitz and Stegun, Handbook of Mathematical Functions (1964), 26.7.5. With 5
    degrees of freedom or more, and shares up to 0.9999, it is 3 % too small at most.
    """
    x = NormalDist().inv_cdf(share)
    terms = (
        (x**3 + x) / 4,
        (5 * x**5 + 16 * x**3 + 3 * x) / 96,
        (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384,
        (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x) / 92160,
    )
    return float(x + sum(t / degrees**i for i, t in enumerate(terms, start=1)))


def _stop_at_budget(
    cells: Mapping[str, LaunchHistory], stopped: Mapping[str, StopReason], budget: float
) -> Iterator[tuple[str, StopReason]]:
    """Stop all cells if the next round would exceed the budget.

    Before the first launch of a cell nothing is known of its cost. That a round fits
    into the budget at all is checked before anything starts.
    """
    waiting = {
        name: cell
        for name, cell in cells.items()
        if name not in stopped and len(cell.counted) < cell.rule.at_most
    }
    spent = sum(
        cost(cell, record)
        for cell in cells.values()
        for record in (*cell.records, *cell.beside)
    )
    # The next launch of a cell takes as long as those before.
    following = sum(
        fmean(cost(cell, record) for record in cell.records)
        for cell in waiting.values()
        if cell.records
    )
    if spent + following > budget:
        for name, cell in waiting.items():
            done = len(cell.counted)
            yield (
                name,
                StopReason(done, f"{BUDGET}: after {done} of {cell.rule.at_most}"),
            )


def cost(cell: LaunchHistory, record: Record) -> float:
    """Device-seconds of a launch, with idle devices of a shared allocation."""
    held = (record.get("round") or {}).get("devices") or cell.cell.size.devices
    return float(held * ((record.get("seconds") or {}).get("launch") or 0.0))
