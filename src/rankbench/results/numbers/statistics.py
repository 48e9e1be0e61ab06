"""Estimates over launches, with their intervals, and ratios of cells, with brackets.

The unit of statistics is a launch. Steps of one process are not independent: more steps
do not reveal how processes differ. So each launch counts as one value.

The logarithm of a launch's throughput is a value of its cell, plus one of its round,
plus scatter. Least squares fit the values; cells that scatter more weigh less. If no
launch is missing, a ratio is the geometric mean of the ratios within rounds.

A launch is disturbed if it is 1.5 times slower than the other launches of its round
explain, and farther off than five times the usual scatter. It is left out and counted,
unless the cell is like that: more than a third of its launches are, or two or more and
significantly more than its share of all disturbed launches (hypergeometric, 5 %). Of a
cell whose kept launches fall into two groups with a wide gap, all count and it is said.

The variance of a cell is its own, moderated by the usual one with the weight of one
launch (Smyth, Statistical Applications in Genetics and Molecular Biology 3, 2004, with
a fixed weight). A bracket is Student's t with the degrees of freedom of Satterthwaite
(Biometrics Bulletin 2, 1946), at the level of Sidak (JASA 62, 1967) for the number of
ratios: with 95 % confidence, all brackets of a table hold their true ratios at once.
`benchmarks/comparing.py` simulates error rates, power and width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

CONFIDENCE = 0.95

# Fewer launches have no interval.
MIN_LAUNCHES = 4

# Of a number that people read.
DIGITS = 4

# Rows are equal if the bracket of their ratio lies within 1 +- this share.
MARGIN = 0.03

EQUAL, UNTOLD = "=", "n.s."

# A disturbed launch is so many times slower than explained, and so many usual scatters
# off. Of a cell's launches, at most one in so many is left out.
_SLOWER, _SCATTERS, _ONE_IN = 1.5, 5.0, 3

# By chance, a cell has so many more slow launches than the others with less than this
# probability: then its launches fall into groups.
_BY_CHANCE = 0.05

# Launches fall into groups, too, if a gap between two or more of them and the others is
# so many times the usual scatter, and wider than either group. By chance, eight normal
# launches have such a gap less often than once in 10,000.
_APART = 4.0

# So large a share of all launches keep within the usual scatter.
_USUAL = 0.85

# Weight of the usual variance beside the cell's own, in degrees of freedom.
_PRIOR = 1.0

# More launches are planned so that they settle a question with this probability. Nobody
# launches a cell more often to settle one question.
POWER, MOST_LAUNCHES = 0.8, 200

# Cell -> round and throughput of each of its launches.
Launches = Mapping[str, Sequence[tuple[Hashable, float]]]

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its interval, which needs 4 launches.

    Attributes:
        verdict: what documents show behind the interval, such as ``n.s.``.
    """

    value: float
    low: float | None = None
    high: float | None = None
    verdict: str = ""

    @property
    def interval(self) -> tuple[float, float] | None:
        if self.low is None or self.high is None:
            return None
        return self.low, self.high

    def may_be(self, value: float) -> bool:
        """Whether the interval holds the value; never without an interval."""
        ends = self.interval
        return ends is not None and ends[0] <= value <= ends[1]

    def printed(self) -> tuple[Estimate, int | None]:
        """The estimate as documents print it, and its decimals.

        The width of the interval has two significant digits, and no number has more
        than four. Decimals may be negative; None: four digits of each number.
        """
        found = self.mapped(round_off)  # As in files, so that all documents agree.
        low, high = found.interval or (0.0, 0.0)
        width, largest = high - low, max(map(abs, (found.value, low, high)))
        if not (0 < width < math.inf and largest < math.inf):
            return found, None
        places = min(1 - _exponent(width), DIGITS - 1 - _exponent(largest))
        return found.mapped(lambda value: round(value, places)), places

    def mapped(self, function: Callable[[float], float]) -> Estimate:
        """The estimate of an increasing function of the quantity."""
        low, high = (v if v is None else function(v) for v in (self.low, self.high))
        return Estimate(function(self.value), low, high, self.verdict)

    def scaled(self, factor: float) -> Estimate:
        """The estimate of ``factor`` (> 0) times the quantity."""
        assert factor > 0
        return self.mapped(lambda value: value * factor)

    def inverse(self) -> Estimate:
        """The estimate of one over the quantity, which is positive."""
        low, high = (v if v is None else 1 / v for v in (self.high, self.low))
        return Estimate(1 / self.value, low, high)

    def to_json(self) -> dict[str, float | None]:
        """Value and ends with 4 significant digits, as all files show them."""
        found = self.mapped(round_off)
        return {"value": found.value, "low": found.low, "high": found.high}


def round_off(value: float) -> float:
    """The value with 4 significant digits."""
    return float(f"{value:.{DIGITS}g}")


def _exponent(value: float) -> int:
    """The power of ten of the first digit."""
    return math.floor(math.log10(value))


def mean(values: Sequence[float] | NDArray[np.float64]) -> Estimate:
    """Arithmetic mean, with the interval of Student's t."""
    values = np.asarray(values, float)
    # Rounding must give no width to values that are all the same.
    same = values.min() == values.max()
    value, count = float(values[0] if same else values.mean()), len(values)
    if count < MIN_LAUNCHES:
        return Estimate(value)
    if same:
        return Estimate(value, value, value)
    error = float(values.std(ddof=1)) / math.sqrt(count)
    reach = quantile_of_t((1 + CONFIDENCE) / 2, count - 1) * error
    return Estimate(value, value - reach, value + reach)


def geometric_mean(values: Sequence[float] | NDArray[np.float64]) -> Estimate:
    """Geometric mean of positive values, with Student's interval of their logarithms.

    Times and rates scatter by factors; the mean of a rate is one over that of its time.
    """
    return mean(np.log(values)).mapped(math.exp)


def satterthwaite(
    parts: NDArray[np.float64], freedom: NDArray[np.float64]
) -> tuple[float, float]:
    """Standard error of a sum of independent parts, and its degrees of freedom.

    Satterthwaite, Biometrics Bulletin 2 (1946).

    Args:
        parts: variance of each part.
        freedom: degrees of freedom of each variance.
    """
    total = float(parts.sum())
    if not total:
        return 0.0, float(freedom.min())
    return math.sqrt(total), total**2 / float((parts**2 / freedom).sum())


def quantile_of_t(share: float, freedom: float) -> float:
    """The value that so large a share of Student's t distribution is below."""
    return float(stdtrit(freedom, share))


def spread(values: Sequence[float] | NDArray[np.float64]) -> float:
    """Interquartile range over the median: scatter without assuming a distribution."""
    low, center, high = np.quantile(values, (0.25, 0.5, 0.75))
    return float((high - low) / center)


# --- ratios of cells whose launches took turns ---------------------------------------


@dataclass(frozen=True, slots=True)
class LogRatio:
    """The logarithm of the ratio of two cells.

    Attributes:
        error: its standard error; infinite if the launches do not tell.
        freedom: degrees of freedom of the error.
        launches: of the cell that has fewer, without disturbed ones.
        own: the part of the squared error that the first cell's launches bring.
    """

    value: float
    error: float
    freedom: float
    launches: int
    own: float = 0.0

    def bracket(self, confidence: float) -> Estimate:
        """The ratio with its bracket; without one if the launches do not tell."""
        ratio = math.exp(self.value)
        if math.isinf(self.error):
            return Estimate(ratio)
        reach = quantile_of_t((1 + confidence) / 2, self.freedom) * self.error
        return Estimate(ratio, ratio * math.exp(-reach), ratio * math.exp(reach))

    def launches_for(
        self, distance: float, confidence: float, *, alone: int = 0
    ) -> int | None:
        """Launches of both cells after which the bracket is probably so narrow.

        Args:
            distance: from the ratio to an end of its bracket, on the scale of
                logarithms.
            confidence: of the bracket.
            alone: launches that the first cell has, if it alone is launched again.

        Returns:
            More launches than there are; `MIN_LAUNCHES` if there is no bracket yet;
            None if they are too many.
        """
        if math.isinf(self.error):
            return MIN_LAUNCHES
        stays, freedom = (self.error**2 - self.own, self.freedom) if alone else (0, 0)
        known = alone or self.launches
        for launches in range(known + 1, MOST_LAUNCHES + 1):
            share = launches / known
            degrees = freedom or self.freedom * share
            reach = quantile_of_t((1 + confidence) / 2, degrees)
            reach += quantile_of_t(POWER, degrees)
            error = math.sqrt(stays + (self.error**2 - stays) / share)
            if reach * error <= distance:
                return launches
        return None


class Fit:
    """Cells, rounds and scatter of launches that are compared with each other.

    Attributes:
        disturbed: cell -> places, from 0, of its launches that are left out.
        grouped: cells whose launches fall into groups, all of which count.
        ratio: a cell, and its base -> their ratio; None unless they are paired.
    """

    def __init__(self, launches: Launches) -> None:
        """Fit the model.

        Args:
            launches: of at least one cell; throughputs are positive and finite.
        """
        self._cells = {name: place for place, name in enumerate(launches)}
        rounds: dict[Hashable, int] = {}
        cell = np.repeat(np.arange(len(launches)), [len(o) for o in launches.values()])
        turn = np.array(
            [
                rounds.setdefault(key, len(rounds))
                for own in launches.values()
                for key, _ in own
            ]
        )
        logs = np.log([value for own in launches.values() for _, value in own])
        gone, grouped, usual, scatter = _find_disturbed(logs, cell, turn)
        self.disturbed = {
            name: np.flatnonzero(gone[cell == place]).tolist()
            for name, place in self._cells.items()
        }
        every = np.zeros((len(launches), len(rounds)))
        every[cell, turn] = 1
        cell, turn, logs = cell[~gone], turn[~gone], logs[~gone]
        weight, cells = 1 / scatter[cell] ** 2, len(launches)
        # The normal equations without the rounds, which are eliminated. Rounds may take
        # what all cells give, so they are singular: hence a pseudo-inverse.
        both = np.zeros((cells, len(rounds)))
        np.add.at(both, (cell, turn), weight)
        of_round = np.maximum(both.sum(axis=0), np.finfo(float).tiny)
        self._weights, self._share = both, both / of_round
        self._each = 1 / scatter**2
        normal = np.diag(both.sum(axis=1)) - self._share @ both.T
        scale = max(float(normal.max()), np.finfo(float).tiny)
        inverse = np.linalg.pinv(normal / scale, rcond=1e-10, hermitian=True) / scale
        self._inverse = inverse
        mean = np.bincount(turn, weight * logs, minlength=len(rounds)) / of_round
        sums = np.bincount(cell, weight * (logs - mean[turn]), minlength=cells)
        self._value = inverse @ sums
        level = mean - self._value @ self._share
        rest = logs - self._value[cell] - level[turn]
        # Degrees of freedom of a launch: 1 less its weight in its own fitted value.
        beside = inverse @ self._share
        own = inverse[cell, cell] - 2 * beside[cell, turn]
        own += ((beside * self._share).sum(axis=0) + 1 / of_round)[turn]
        free = 1 - weight * own
        self._all_freedom = float(free.sum())
        freedom = np.maximum(np.bincount(cell, free, minlength=cells), 1e-9)
        square = np.bincount(cell, rest**2, minlength=cells) / freedom
        square = np.maximum(square, 1e-12)
        usual = max(usual**2, float(np.median(square)))
        self.grouped = {
            name
            for name, n in self._cells.items()
            if n in grouped or _has_gap(rest[cell == n], math.sqrt(usual))
        }
        self._freedom = freedom + _PRIOR
        self._variance = (freedom * square + _PRIOR * usual) / self._freedom
        self._counts = np.bincount(cell, minlength=cells)
        # Disturbed launches were in their rounds as well.
        common, counted = every @ every.T, (both > 0) @ (both > 0).T
        enough = np.minimum(every.sum(axis=1), min(MIN_LAUNCHES, len(rounds)))
        self._paired = counted & (common >= np.minimum.outer(enough, enough))
        # The table and both questions of the answer ask for the same ratios.
        self.ratio: Callable[[str, str], LogRatio | None] = cache(self._find_ratio)

    def is_paired(self, name: str, base: str) -> bool:
        """Whether enough launches of both cells were in the same rounds."""
        return bool(self._paired[self._cells[name], self._cells[base]])

    def _find_ratio(self, name: str, base: str) -> LogRatio | None:
        """The ratio of two cells; None unless they are paired."""
        if not self.is_paired(name, base):
            return None
        mine, theirs = self._cells[name], self._cells[base]
        few = int(min(self._counts[mine], self._counts[theirs]))
        value = float(self._value[mine] - self._value[theirs])
        if few < MIN_LAUNCHES:
            return LogRatio(value, math.inf, 1.0, few)
        found = self._inverse[mine] - self._inverse[theirs]
        # What the logarithm of each launch has as its factor in the value, squared.
        factors = (found[:, None] - found @ self._share) ** 2
        parts = (factors * self._weights).sum(axis=1) * self._each * self._variance
        error, freedom = satterthwaite(parts, self._freedom)
        freedom = min(freedom, self._all_freedom)
        return LogRatio(value, error, freedom, few, float(parts[mine]))


def ratio_of_samples(values: Sequence[float], others: Sequence[float]) -> LogRatio:
    """The ratio of launches that are not of one table, and so in no common rounds.

    Args:
        values, others: positive, one number for each launch.
    """
    sides = {"values": values, "others": others}
    fit = Fit({name: [(None, value) for value in side] for name, side in sides.items()})
    found = fit.ratio("values", "others")
    assert found is not None
    return found


def find_drifting(series: Mapping[str, Sequence[float]]) -> list[str]:
    """The series that rise or fall along a line, all at once with 95 % confidence.

    Args:
        series: name -> throughput of each launch, in order of time.
    """
    long = {name: own for name, own in series.items() if len(own) >= MIN_LAUNCHES}
    each = confidence_of_each(len(long))
    found = []
    for name, own in long.items():
        logs, turn = np.log(own), np.arange(len(own)) - (len(own) - 1) / 2
        square, reach, freedom = float(turn @ turn), len(own) - 1, len(own) - 2
        slope = float(turn @ logs) / square
        rest = logs - logs.mean() - slope * turn
        error = max(1e-9, math.sqrt(float(rest @ rest) / freedom / square))
        # The last launch over the first.
        ratio = LogRatio(reach * slope, reach * error, freedom, len(own))
        if not ratio.bracket(each).may_be(1.0):
            found.append(name)
    return found


def judge(ratio: Estimate, margin: float = MARGIN) -> str:
    """`EQUAL`, `UNTOLD`, or nothing for a ratio that differs from 1.

    It is equal if the bracket includes 1 and lies within the margin. A ratio without a
    bracket has no verdict. The bracket counts as it is printed, so that no reader sees
    another one than the verdict is of. Rounding never makes a bracket that holds 1
    exclude it.
    """
    low, high = ratio.printed()[0].interval or (math.inf, 0.0)
    if not low <= 1.0 <= high:
        return ""
    return EQUAL if 1 / (1 + margin) <= low and high <= 1 + margin else UNTOLD


def confidence_of_each(
    ratios: int, confidence: float = CONFIDENCE, *, look: int = 1
) -> float:
    """Confidence of each of so many brackets, such that all hold at once (Sidak).

    Args:
        ratios: number of the brackets.
        confidence: of all of them.
        look: who looks again, after more launches because of what he saw, errs more
            often in all; so each look may err half as often as the one before.
    """
    return float((1 - (1 - confidence) / 2 ** (look - 1)) ** (1 / max(1, ratios)))


def _find_disturbed(
    logs: Array, cell: Indices, turn: Indices
) -> tuple[Mask, set[int], float, Array]:
    """Find the launches that are far slower than their round explains.

    Args:
        logs: logarithm of the throughput of each launch.
        cell, turn: numbers of its cell and its round, from 0.

    Returns:
        Which launches those are; the cells with slow launches that are kept; the usual
        scatter of a launch; and that of each cell, which is the usual one at least.
    """
    count, cells, rounds = len(logs), cell.max() + 1, turn.max() + 1
    by_cell, by_round = _places(cell), _places(turn)
    # Tukey's median polish: a few far launches do not move its values.
    of_round = np.zeros(rounds)
    for _ in range(4):
        rest = logs - of_round[turn]
        of_cell = np.array([np.median(rest[mine]) for mine in by_cell])
        rest = logs - of_cell[cell]
        of_round = np.array([np.median(rest[mine]) for mine in by_round])
    off = np.zeros(count)
    for mine in by_round:
        off[mine] = rest[mine] - _medians_of_others(rest[mine])
    far = np.abs(off)
    place = max(1, int(_USUAL * count + 1e-9)) - 1
    usual = float(np.sort(far)[place] / ndtri((1 + _USUAL) / 2))
    usual *= math.sqrt(max(0, count - rounds) / max(1, count - cells))
    scatter, gone, slow = np.zeros(cells), np.zeros(count, bool), np.zeros(count, bool)
    for number, mine in enumerate(by_cell):
        most = len(mine) // _ONE_IN
        rank = len(mine) - most
        share = (rank - 3 / 8) / (len(mine) + 1 / 4)  # Blom's plotting position
        inner = float(np.sort(far[mine])[rank - 1] / ndtri((1 + share) / 2))
        scatter[number] = max(usual, inner, 1e-6)
        limit = max(math.log(_SLOWER), _SCATTERS * scatter[number])
        slow[mine] = off[mine] < -limit
    grouped, every = set(), int(slow.sum())
    for number, mine in enumerate(by_cell):
        own = int(slow[mine].sum())
        is_often = own > len(mine) // _ONE_IN
        if own > 1:
            chance = _chance_of(own, len(mine), every, count)
            is_often = is_often or chance < _BY_CHANCE
        if is_often:
            grouped.add(number)
        else:
            gone[mine] = slow[mine]
    return gone, grouped, usual, scatter


def _has_gap(rest: Array, usual: float) -> bool:
    """Whether residuals of a cell's launches fall into two groups, wide apart.

    Args:
        rest: logarithms.
        usual: the usual scatter of a launch.
    """
    ordered, few = np.sort(rest), 2
    gaps = np.diff(ordered)[few - 1 : 1 - few]
    if not len(gaps):
        return False
    lower, upper = np.split(ordered, [int(gaps.argmax()) + few])
    return float(gaps.max()) > max(_APART * usual, np.ptp(lower), np.ptp(upper))


def _places(numbers: Indices) -> list[Indices]:
    """For each number from 0, the places where it is."""
    order = np.argsort(numbers, kind="stable")
    return np.split(order, np.cumsum(np.bincount(numbers))[:-1])


def _chance_of(own: int, launches: int, every: int, count: int) -> float:
    """Chance of so many or more of a cell's launches among those that are slow.

    Args:
        own: slow launches of the cell.
        launches: all of the cell.
        every: slow launches of all cells.
        count: launches of all cells.
    """
    ways = (
        math.comb(every, some) * math.comb(count - every, launches - some)
        for some in range(own, min(every, launches) + 1)
    )
    return sum(ways) / math.comb(count, launches)


def _medians_of_others(values: Array) -> Array:
    """For each value, the median of all the others; the value itself without others."""
    others = len(values) - 1
    if others == 0:
        return values
    order = np.argsort(values, kind="stable")
    ordered, places = values[order], np.argsort(order, kind="stable")

    def nth_of_others(number: int) -> Array:
        return np.asarray(ordered[number + (number >= places)])

    return (nth_of_others((others - 1) // 2) + nth_of_others(others // 2)) / 2
