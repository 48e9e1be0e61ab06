"""Ratios of cells whose launches took turns: one bracket each, which is the verdict.

The logarithm of a launch's throughput is a value of its cell, plus one of its round,
plus scatter. Least squares fit the values; cells that scatter more weigh less. If no
launch is missing, a ratio is the geometric mean of the ratios within rounds.

A launch is disturbed if it is 1.5 times slower than the other launches of its round
explain, and farther off than five times the usual scatter. It is left out and counted,
unless more than a third of its cell's launches are: then the cell is like that.

The variance of a cell is its own, moderated by the usual one with the weight of one
launch (Smyth, Statistical Applications in Genetics and Molecular Biology 3, 2004, with
a fixed weight). A bracket is Student's t with the degrees of freedom of Satterthwaite
(Biometrics Bulletin 2, 1946), at the level of Sidak (JASA 62, 1967) for the number of
ratios: with 95 % confidence, all brackets of a table hold their true ratios at once.
`benchmarks/comparing.py` simulates error rates, power and width.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from rankbench.results.numbers.statistics import (
    CONFIDENCE,
    MIN_LAUNCHES,
    Estimate,
    quantile_of_t,
    satterthwaite,
)

# Rows are equal if the bracket of their ratio lies within 1 +- this share.
MARGIN = 0.03

EQUAL, UNTOLD = "=", "n.s."

# A disturbed launch is so many times slower than explained, and so many usual scatters
# off. Of a cell's launches, at most one in so many is left out.
_SLOWER, _SCATTERS, _ONE_IN = 1.5, 5.0, 3

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
    """

    def __init__(self, launches: Launches) -> None:
        """Fit the model.

        Args:
            launches: of at least one cell; throughputs are positive and finite.
        """
        self._cells = {name: place for place, name in enumerate(launches)}
        rounds: dict[Hashable, int] = {}
        flat = [(name, *launch) for name, own in launches.items() for launch in own]
        cell = np.array([self._cells[name] for name, _, _ in flat])
        turn = np.array([rounds.setdefault(key, len(rounds)) for _, key, _ in flat])
        logs = np.log([value for _, _, value in flat])
        gone, usual, scatter = _find_disturbed(logs, cell, turn)
        self.disturbed = {
            name: np.flatnonzero(gone[cell == place]).tolist()
            for name, place in self._cells.items()
        }
        cell, turn, logs = cell[~gone], turn[~gone], logs[~gone]
        self._logs, self._cell, self._turn = logs, cell, turn
        self._weight = 1 / scatter[cell] ** 2
        cells, self._rounds = len(self._cells), len(rounds)
        # The normal equations; columns are cells first, then rounds.
        column, size = cells + turn, cells + len(rounds)
        right, normal = np.zeros(size), np.zeros((size, size))
        for rows in (cell, column):
            np.add.at(right, rows, self._weight * logs)
            for columns in (cell, column):
                np.add.at(normal, (rows, columns), self._weight)
        scale = normal.max()
        # Singular, because rounds may take what all cells give: hence a pseudo-inverse.
        inverse = np.linalg.pinv(normal / scale, rcond=1e-10, hermitian=True) / scale
        self._inverse = inverse
        solution = inverse @ right
        rest = logs - solution[cell] - solution[column]
        # Degrees of freedom of a launch: 1 less its weight in its own fitted value.
        own = inverse[cell, cell] + 2 * inverse[cell, column] + inverse[column, column]
        free = 1 - self._weight * own
        self._all_freedom = float(free.sum())
        freedom = np.maximum(np.bincount(cell, free, minlength=cells), 1e-9)
        square = np.bincount(cell, rest**2, minlength=cells) / freedom
        square = np.maximum(square, 1e-12)
        usual = max(usual**2, float(np.median(square)))
        self._freedom = freedom + _PRIOR
        self._variance = (freedom * square + _PRIOR * usual) / self._freedom
        self._ratios: dict[tuple[str, str], LogRatio | None] = {}

    def ratio(self, name: str, base: str) -> LogRatio:
        """The ratio of two cells.

        Without enough rounds in common, all their launches count as of one round.
        """
        if (found := self._in_rounds(name, base)) is not None:
            return found
        alone: Launches = {
            side: [(None, math.exp(log)) for log in self._logs[self._is_of(side)]]
            for side in (name, base)
        }
        return Fit(alone).ratio(name, base)

    def is_paired(self, name: str, base: str) -> bool:
        """Whether enough launches of both cells were in the same rounds."""
        return self._in_rounds(name, base) is not None

    def _is_of(self, name: str) -> Mask:
        return np.asarray(self._cell == self._cells[name])

    def _in_rounds(self, name: str, base: str) -> LogRatio | None:
        """The ratio by the fit; None if rounds do not connect the cells well enough."""
        if (name, base) not in self._ratios:
            self._ratios[name, base] = self._find_ratio(name, base)
        return self._ratios[name, base]

    def _find_ratio(self, name: str, base: str) -> LogRatio | None:
        cells = len(self._cells)
        own, theirs = (self._turn[self._is_of(side)] for side in (name, base))
        few = min(len(own), len(theirs))
        common = len(np.intersect1d(own, theirs))
        if self._rounds > 1 and common < min(few, MIN_LAUNCHES):
            return None
        asked = np.zeros(cells + self._rounds)
        asked[self._cells[name]], asked[self._cells[base]] = 1.0, -1.0
        found = self._inverse @ asked
        shares = self._weight * (found[self._cell] + found[cells + self._turn])
        value = float(shares @ self._logs)
        if few < MIN_LAUNCHES:
            return LogRatio(value, math.inf, 1.0, few)
        parts = np.bincount(self._cell, shares**2, minlength=cells) * self._variance
        error, freedom = satterthwaite(parts, self._freedom)
        mine = float(parts[self._cells[name]])
        return LogRatio(value, error, min(freedom, self._all_freedom), few, mine)


def ratio_of_samples(values: Sequence[float], others: Sequence[float]) -> Estimate:
    """The ratio of launches that were in no common rounds.

    Args:
        values, others: positive, one number for each launch.
    """
    sides = {"values": values, "others": others}
    fit = Fit({name: [(None, value) for value in side] for name, side in sides.items()})
    return fit.ratio("values", "others").bracket(CONFIDENCE)


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

    A ratio without a bracket has no verdict. The bracket counts as it is printed, so
    that no reader sees another one than the verdict is of. Rounding never makes a
    bracket that holds 1 exclude it.
    """
    shown, _ = ratio.printed()
    if shown.low is None or shown.high is None:
        return ""
    if 1 / (1 + margin) <= shown.low and shown.high <= 1 + margin:
        return EQUAL
    return UNTOLD if shown.may_be(1.0) else ""


def confidence_of_each(ratios: int, confidence: float = CONFIDENCE) -> float:
    """Confidence of each of so many brackets, such that all hold at once (Sidak)."""
    return float(confidence ** (1 / max(1, ratios)))


def _find_disturbed(
    logs: Array, cell: Indices, turn: Indices
) -> tuple[Mask, float, Array]:
    """Find the launches that are far slower than their round explains.

    Args:
        logs: logarithm of the throughput of each launch.
        cell, turn: numbers of its cell and its round, from 0.

    Returns:
        Which launches those are; the usual scatter of a launch; and that of each cell,
        which is the usual one at least.
    """
    count, cells, rounds = len(logs), cell.max() + 1, turn.max() + 1
    by_cell = [np.flatnonzero(cell == place) for place in range(cells)]
    by_round = [np.flatnonzero(turn == place) for place in range(rounds)]
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
    scatter, gone = np.zeros(cells), np.zeros(count, bool)
    for number, mine in enumerate(by_cell):
        most = len(mine) // _ONE_IN
        rank = len(mine) - most
        share = (rank - 3 / 8) / (len(mine) + 1 / 4)  # Blom's plotting position
        inner = float(np.sort(far[mine])[rank - 1] / ndtri((1 + share) / 2))
        scatter[number] = max(usual, inner, 1e-6)
        slow = mine[off[mine] < -max(math.log(_SLOWER), _SCATTERS * scatter[number])]
        if len(slow) <= most:
            gone[slow] = True
    return gone, usual, scatter


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
