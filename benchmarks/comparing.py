"""Can verdicts be trusted? Simulated launches, judged by the functions of a table.

Ten families of tables of eight rows with eight launches, if nothing else is said. The
speed of the machine walks by 3 % from round to round; a launch scatters by 3 %. Each
draw of launches is used three times:

- all rows are equal: whether all brackets of a table *hold* their true ratios, and
  whether any row is called *slower* than the one that is named (it never is);
- a row is faster by three times the scatter: *power* is how often its bracket tells;
- true speeds scatter by 5 %: how often no row is named because of noise (*refused*),
  and how much slower than the best row the one is that would have been named: the
  upper twentieth of such losses where it is named (*regret*), and where it is not.

*SCALES*: tables in which the sentence on how far a series scales contradicts a printed
bracket. *plot*: tables in which intervals of throughput that are shown contradict a
verdict. *marked*: tables that mark the rows that are odd in this family.

    python benchmarks/comparing.py                   # a quarter of an hour
    python benchmarks/comparing.py --tables 100
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from rankbench.results.advice.answer import EFFICIENCY
from rankbench.results.advice.choice import (
    LESS,
    Rival,
    choose,
    find_end,
    find_noisy,
)
from rankbench.results.numbers.result_set import OF_LAUNCHES
from rankbench.results.numbers.statistics import (
    MARGIN,
    UNTOLD,
    Estimate,
    Fit,
    confidence_of_each,
    judge,
)

WALK, SCATTER, FASTER, SPREAD = 0.03, 0.03, 3, 0.05
LOOKS, MOST_LAUNCHES = 4, 60

Values = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, int]], Values]


@dataclass(frozen=True, kw_only=True)
class Family:
    """How launches scatter.

    Attributes:
        draw: logarithms of [rows, rounds] launches of equal rows, without the machine;
            not a number for a launch that is missing.
        scatter: of a usual launch.
        odd: the rows that are unlike the others.
        apart: number of rows, the last ones, that were launched in another session.
        looks: how often launches may be added because a rival cannot be told apart.
    """

    draw: Draw
    rows: int = 8
    launches: int = 8
    scatter: float = SCATTER
    odd: tuple[int, ...] = ()
    apart: int = 0
    looks: int = 1


def normal(rng: np.random.Generator, shape: tuple[int, int]) -> Values:
    return SCATTER * rng.normal(size=shape)


def slow(
    share: float,
    low: float,
    high: float,
    *,
    row: int | None = None,
    base: Draw = normal,
) -> Draw:
    """A share of the launches, of all rows or of one, is slower by a factor.

    One row is as fast as the others on average.
    """

    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> Values:
        factors = np.log(rng.uniform(low, high, shape)) * (rng.random(shape) < share)
        if row is not None:
            kept = np.zeros(shape)
            kept[row] = factors[row] - share * math.log(low)
            factors = kept
        return base(rng, shape) - factors

    return draw


def slow_rounds(rng: np.random.Generator, shape: tuple[int, int]) -> Values:
    """Every third round is slow for all rows."""
    factors = np.log(rng.uniform(1.5, 4, shape[1])) * (rng.random(shape[1]) < 0.3)
    return normal(rng, shape) - factors


def unequal(rng: np.random.Generator, shape: tuple[int, int]) -> Values:
    """Each row has a scatter of its own, and one launch in ten is missing."""
    found = rng.uniform(0.01, 0.08, (shape[0], 1)) * rng.normal(size=shape)
    found[rng.random(shape) < 0.1] = np.nan
    return found


def heavy(rng: np.random.Generator, shape: tuple[int, int]) -> Values:
    return 0.01 * rng.standard_t(2, size=shape)


def tight(rng: np.random.Generator, shape: tuple[int, int]) -> Values:
    return 0.01 * rng.normal(size=shape)


FAMILIES = {
    "normal": Family(draw=normal),
    "normal, 30 rows": Family(draw=normal, rows=30),
    "heavy tails (t, 2)": Family(draw=heavy, scatter=0.02),
    "scatter 1 to 8 % by row, launches missing": Family(draw=unequal),
    "10 % disturbed, 2 to 10 times slower": Family(draw=slow(0.1, 2, 10)),
    "30 % of rounds slow": Family(draw=slow_rounds),
    "3 rows of another session": Family(draw=normal, apart=3, odd=(5, 6, 7)),
    "one row, 20 launches: 12 % 1.6 times slower": Family(
        draw=slow(0.12, 1.6, 1.6, row=2, base=tight),
        launches=20,
        scatter=0.01,
        odd=(2,),
    ),
    "one row: 40 % of launches 1.3 times slower": Family(
        draw=slow(0.4, 1.3, 1.3, row=2), odd=(2,)
    ),
    "--next, up to four looks": Family(draw=normal, looks=LOOKS),
}

# What is promised, of each family: shares of tables.
LEAST_COVERAGE, MOST_FALSE = 0.94, 0.05
LEAST_POWER = {"normal": 0.95, "10 % disturbed, 2 to 10 times slower": 0.78}

COLUMNS = ("hold", "slower", "SCALES", "plot", "power", "refused", "marked")


class Table:
    """Launches of rows "0" (the base), "1" ..., as `summarise` would judge them."""

    def __init__(self, family: Family, logs: Values, *, look: int = 1) -> None:
        rows, rounds = logs.shape
        first = rows - family.apart
        self.launches = {
            str(row): [
                (turn + rounds * (row >= first), float(np.exp(logs[row, turn])))
                for turn in range(rounds)
                if not math.isnan(logs[row, turn])
            ]
            for row in range(rows)
        }
        self.fit = Fit(self.launches)
        self.look = look
        each = confidence_of_each(rows - 1, look=look)
        self.ratios = {
            name: ratio.bracket(each)
            for name in self.launches
            if name != "0" and (ratio := self.fit.ratio(name, "0"))
        }

    def choose(self) -> tuple[int, list[Rival]]:
        factors = dict.fromkeys(self.launches, 1.0)
        best, rivals = choose(self.fit, factors, MARGIN, look=self.look)
        return int(best), rivals

    def contradicts_plot(self) -> bool:
        """Whether intervals of throughput are disjoint, and the verdict is `n.s.`."""
        shown = {}
        for name, own in self.launches.items():
            gone = self.fit.disturbed[name]
            rates = [rate for n, (_, rate) in enumerate(own) if n not in gone]
            shown[name] = OF_LAUNCHES["throughput"](rates).interval
        base = shown["0"]
        return any(
            ends[0] > base[1] or ends[1] < base[0]
            for name, ratio in self.ratios.items()
            if base and (ends := shown[name]) and judge(ratio) == UNTOLD
        )

    def contradicts_scales(self, efficiencies: Mapping[str, float]) -> bool:
        """Whether the sentence on how far a series scales contradicts a bracket."""
        found = {
            name: ratio.scaled(efficiencies[name])
            for name, ratio in self.ratios.items()
        }
        points = [
            SimpleNamespace(
                name=name,
                devices=2 ** int(name),
                numbers={"efficiency": ratio},
            )
            for name, ratio in found.items()
        ]
        above, end, is_below = find_end(cast(Any, points), EFFICIENCY)
        largest = max([int(cast(Any, one).name) for one in above], default=0)

        def ends(ratio: Estimate) -> tuple[float, float]:
            return ratio.printed()[0].interval or (0.0, math.inf)

        claimed = [ends(own) for name, own in found.items() if int(name) <= largest]
        below = [ends(found[cast(Any, end).name])] if end and is_below else []
        return any(low <= EFFICIENCY for low, _ in claimed) or any(
            high >= EFFICIENCY for _, high in below
        )


def simulate(name: str, seed: int) -> dict[str, float]:
    """What one draw of launches gives, by column."""
    family = FAMILIES[name]
    rng = np.random.default_rng(seed)

    def draw(rounds: int) -> Values:
        walk = np.cumsum(WALK * rng.normal(size=rounds))
        session = np.zeros((family.rows, 1))
        session[family.rows - family.apart :] = WALK * rng.normal()
        return walk + session + family.draw(rng, (family.rows, rounds))

    logs = draw(family.launches)
    table = Table(family, logs)
    holds = [
        ratio.interval is None or ratio.may_be(1.0) for ratio in table.ratios.values()
    ]
    odd = [str(row) for row in family.odd]
    marked = [
        name in table.fit.grouped
        or not table.fit.is_paired(name, "0")
        or bool(table.fit.disturbed[name])
        for name in odd
    ]
    efficiencies = {
        str(row): float(rng.choice([0.66, 0.69, 0.71, 0.75, 0.8, 0.9]))
        for row in range(family.rows)
    }
    found = {
        "hold": float(all(holds)),
        "slower": float(is_called_slower(family, logs, draw)),
        "plot": float(table.contradicts_plot()),
        "SCALES": float(table.contradicts_scales(efficiencies)),
        "marked": float(all(marked)) if odd else math.nan,
    }
    faster = logs.copy()
    faster[1] += FASTER * family.scatter
    ratio = Table(family, faster).ratios.get("1", Estimate(1.0))
    found["power"] = float(ratio.interval is not None and not ratio.may_be(1.0))
    speeds = SPREAD * rng.normal(size=family.rows)
    best, rivals = Table(family, logs + speeds[:, None]).choose()
    is_refused = find_noisy(rivals) is not None
    compared = [best, *(int(one.cell) for one in rivals if one.ratio)]
    loss = math.expm1(float(speeds[compared].max() - speeds[best]))
    return found | {"refused": float(is_refused), "loss": loss}


def is_called_slower(
    family: Family, logs: Values, draw: Callable[[int], Values]
) -> bool:
    """Whether, at any look, a row is called slower than another, which is its equal."""
    for look in range(1, family.looks + 1):
        _, rivals = Table(family, logs, look=look).choose()
        if any(rival.verdict == LESS for rival in rivals):
            return True
        asked = [rival.launches or 0 for rival in rivals]
        more = min(max(asked), MOST_LAUNCHES) - logs.shape[1]
        if more <= 0:
            break
        logs = np.concatenate([logs, draw(more)], axis=1)
    return False


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", type=int, default=1000, help="of each family")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    seeds = range(arguments.seed, arguments.seed + arguments.tables)
    print(f"| launches | {' | '.join(COLUMNS)} | regret, named / refused |")
    print("|---|" + "---|" * (len(COLUMNS) + 1))
    broken = []
    with multiprocessing.Pool(arguments.processes) as pool:
        for name in FAMILIES:
            tables = pool.map(partial(simulate, name), seeds, chunksize=25)
            means = {
                column: float(np.mean([table[column] for table in tables]))
                for column in COLUMNS
            }
            shown = ["" if math.isnan(v) else f"{100 * v:.1f}" for v in means.values()]
            losses: list[list[float]] = [[], []]
            for table in tables:
                losses[int(table["refused"])].append(100 * table["loss"])
            regret = " / ".join(
                f"{np.quantile(own, 0.95):.1f}" if own else "" for own in losses
            )
            print(f"| {name} | {' | '.join(shown)} | {regret} |", flush=True)
            broken += [f"{name}: {what}" for what in find_broken(name, means)]
    print()
    for line in broken:
        print(f"FAILS: {line}")
    return 1 if broken else 0


def find_broken(name: str, means: Mapping[str, float]) -> Iterator[str]:
    """What is promised, and does not hold."""
    if means["hold"] < LEAST_COVERAGE - 0.04 * bool(FAMILIES[name].odd):
        yield f"all brackets hold in {means['hold']:.1%} of tables"
    if means["slower"] > MOST_FALSE:
        yield f"an equal row is called slower in {means['slower']:.1%}"
    for column in ("SCALES", "plot"):
        if means[column]:
            yield f"{column} contradicts the table in {means[column]:.1%}"
    if means["power"] < LEAST_POWER.get(name, 0.0):
        yield f"power is {means['power']:.1%}"


if __name__ == "__main__":
    sys.exit(main())
