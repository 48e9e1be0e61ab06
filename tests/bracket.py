"""A bracket worked out by the formulas of docs/method.md, without rankbench.

`make example` writes the numbers of docs/example into that page; a test reads the
launches back from it, and finds the bracket that the table has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

# Row -> throughput of each of its launches, by round.
Launches = Mapping[str, Mapping[int, float]]


class Bracket(NamedTuple):
    """What the page shows of a row and its base, by the letters of its formulas."""

    usual: float
    scatter: tuple[float, float]
    weight: tuple[float, float]
    freedom: tuple[float, float]
    square: tuple[float, float]
    floor: float
    variance: tuple[float, float]
    left_out: int
    ratio: float
    error: float
    degrees: float
    quantile: float
    low: float
    high: float


def work_out(launches: Launches, row: str, base: str, ratios: int) -> Bracket:
    """The bracket of a row over its base.

    Args:
        launches: of all rows of the workload.
        ratios: number of brackets in the table.
    """
    names, rounds = (
        list(launches),
        sorted({r for own in launches.values() for r in own}),
    )
    at = [(c, rounds.index(r)) for c, n in enumerate(names) for r in launches[n]]
    cell, turn = np.array(at).T
    y = np.log([rate for own in launches.values() for rate in own.values()])
    m, n, count = len(names), len(rounds), len(y)
    # 1. How far each launch is off.
    b = np.zeros(n)
    for _ in range(4):
        a = np.array([np.median((y - b[turn])[cell == c]) for c in range(m)])
        e = y - a[cell]
        b = np.array([np.median(e[turn == r]) for r in range(n)])
    d = np.array(
        [
            e[i] - np.median(e[(turn == turn[i]) & (cell != cell[i])])
            if (turn == turn[i]).sum() > 1
            else 0.0
            for i in range(count)
        ]
    )
    # 2. Usual scatter, scatter of each row, and what is left out.
    k = math.floor(0.85 * count + 1e-9)
    u = np.sort(abs(d))[k - 1] / stats.norm.ppf(0.925)
    u *= math.sqrt((count - n) / (count - m))
    s = np.zeros(m)
    for c in range(m):
        own = int((cell == c).sum())
        j = own - own // 3
        part = (j - 3 / 8) / (own + 1 / 4)
        inner = np.sort(abs(d[cell == c]))[j - 1] / stats.norm.ppf((1 + part) / 2)
        s[c] = max(u, inner)
    slow = d < -np.maximum(math.log(1.5), 5 * s[cell])
    gone = slow.copy()
    for c in range(m):
        mine = cell == c
        own, size = int(slow[mine].sum()), int(mine.sum())
        chance = stats.hypergeom.sf(own - 1, count, int(slow.sum()), size)
        if own > size // 3 or (own > 1 and chance < 0.05):
            gone[mine] = False
    # 3. The fit.
    cell, turn, y = cell[~gone], turn[~gone], y[~gone]
    x = np.zeros((len(y), m + n))
    x[np.arange(len(y)), cell] = x[np.arange(len(y)), m + turn] = 1
    w = 1 / s[cell] ** 2
    solve = np.linalg.pinv(x.T * w @ x, hermitian=True) @ x.T * w
    rest = y - x @ (solve @ y)
    free = 1 - np.einsum("ij,ji->i", x, solve)
    f = np.array([free[cell == c].sum() for c in range(m)])
    q = np.array([(rest[cell == c] ** 2).sum() for c in range(m)]) / f
    floor = max(u**2, float(np.median(q)))
    v = (f * q + floor) / (f + 1)
    # 4. The bracket.
    i, o = names.index(row), names.index(base)
    factors = solve[i] - solve[o]
    parts = np.array([(factors[cell == c] ** 2).sum() for c in range(m)]) * v
    error = math.sqrt(parts.sum())
    degrees = min(error**4 / float((parts**2 / (f + 1)).sum()), float(free.sum()))
    each = 0.95 ** (1 / ratios)
    quantile = float(stats.t.ppf((1 + each) / 2, degrees))
    ratio = math.exp(factors @ y)

    def pair(values: Sequence[float]) -> tuple[float, float]:
        return float(values[i]), float(values[o])

    return Bracket(
        usual=float(u),
        scatter=pair(s),
        weight=pair(1 / s**2 / (1 / s**2).sum()),
        freedom=pair(f),
        square=pair(q),
        floor=floor,
        variance=pair(v),
        left_out=int(gone.sum()),
        ratio=ratio,
        error=error,
        degrees=degrees,
        quantile=quantile,
        low=ratio * math.exp(-quantile * error),
        high=ratio * math.exp(quantile * error),
    )


def show(launches: Launches, row: str, base: str, ratios: int, says: str) -> list[str]:
    """Lines of docs/method.md: the launches, and the numbers of one row.

    Args:
        says: the speedup as the table prints it.
    """
    found = work_out(launches, row, base, ratios)
    letters = {name: chr(ord("A") + place) for place, name in enumerate(launches)}
    rounds = sorted({number for own in launches.values() for number in own})
    lines = [f"- {letter}: `{name}`" for name, letter in letters.items()]
    lines += ["", f"| round | {' | '.join(letters.values())} |"]
    lines.append("|---" * (1 + len(letters)) + "|")
    for number in rounds:
        rates = [own.get(number) for own in launches.values()]
        shown = ("" if rate is None else f"{rate:.6g}" for rate in rates)
        lines.append(f"| r{number} | {' | '.join(shown)} |")
    one, other = letters[row], letters[base]

    def pair(values: tuple[float, float]) -> str:
        return f"{values[0]:.4g} ({one}) and {values[1]:.4g} ({other})"

    return [
        *lines,
        "",
        f"{found.left_out} launches are left out; the table has {ratios} brackets. "
        f"{one} over {other}:",
        "",
        f"- *u* = {found.usual:.4g}; *s* = {pair(found.scatter)}",
        f"- *p* = {pair(found.weight)}; *f* = {pair(found.freedom)}",
        f"- *q* = {pair(found.square)}; *U* = {found.floor:.4g}",
        f"- *V* = {pair(found.variance)}",
        f"- *R* = {found.ratio:.5g}; *E* = {found.error:.4g}; *F* = "
        f"{found.degrees:.4g}; *t* = {found.quantile:.4g}",
        f"- ends {found.low:.5g} and {found.high:.5g}; files have four digits, and the "
        f"table rounds these: `{says}`",
    ]
