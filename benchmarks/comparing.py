"""Can the brackets be trusted? Error rate, power and width, on simulated launches.

Tables of equal cells, on a machine whose speed walks by 3 % from round to round. An
error is a table in which any bracket misses its true ratio. The brackets move with
their cells, so their coverage is one minus the error rate. Power: one cell differs by
three times its scatter. Width: of a bracket, in scatters, and how much wider it becomes
if one launch is three times slower.

    python benchmarks/comparing.py                  # ten minutes
    python benchmarks/comparing.py --tables 100     # one minute
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from rankbench.results.numbers.fit import Fit, confidence_of_each

CELLS, ROUNDS = (2, 4, 8, 30), (6, 8, 12, 20)
WALK, USUAL = 0.03, 0.03

Values = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, int]], Values]


def normal(scatter: float) -> Draw:
    return lambda rng, shape: scatter * rng.normal(size=shape)


def levels(share: float, factor: float, scatter: float = 0.01) -> Draw:
    """A share of the launches is slower by a factor, as where memory lies badly."""

    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> Values:
        slow = math.log(factor) * (rng.random(shape) < share)
        return scatter * rng.normal(size=shape) - slow

    return draw


def disturbed(
    share: float, low: float = 2.0, high: float = 10.0, base: Draw | None = None
) -> Draw:
    """A share of the launches is slower by any factor between two."""
    draw_base = base or normal(USUAL)

    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> Values:
        slow = np.log(rng.uniform(low, high, shape)) * (rng.random(shape) < share)
        return draw_base(rng, shape) - slow

    return draw


def lasting(rng: np.random.Generator, shape: tuple[int, int]) -> Values:
    """Disturbances that hit successive launches, whichever cells those are of."""
    count = shape[0] * shape[1]
    slow = np.zeros(count)
    for start in np.flatnonzero(rng.random(count) < 0.02):
        slow[start : start + 3] = math.log(rng.uniform(1.5, 4))
    in_turn = slow.reshape(shape[::-1])
    return USUAL * rng.normal(size=shape) - rng.permuted(in_turn, axis=1).T


def unequal(choose: Callable[[np.random.Generator, int], Values]) -> Draw:
    """Each cell has a scatter of its own; the first is the base."""
    return lambda rng, shape: choose(rng, shape[0])[:, None] * rng.normal(size=shape)


def between(rng: np.random.Generator, cells: int) -> Values:
    return rng.uniform(0.01, 0.08, cells)


def one_of_two_levels(rng: np.random.Generator, shape: tuple[int, int]) -> Values:
    found = normal(0.01)(rng, shape)
    # As fast on average as the others.
    found[-1] = levels(0.4, 1.12)(rng, (1, shape[1])) + 0.4 * math.log(1.12)
    return found


def times(factor: float, *cells: int, half: bool = False) -> Draw:
    def choose(_: np.random.Generator, count: int) -> Values:
        scatter = np.full(count, 0.01)
        scatter[list(cells) if not half else slice(0, (count + 1) // 2)] *= factor
        return scatter

    return unequal(choose)


FAMILIES: dict[str, Draw] = {
    "normal, 1 %": normal(0.01),
    "normal, 3 %": normal(0.03),
    "normal, 8 %": normal(0.08),
    "heavy tail (t, 3)": lambda rng, shape: USUAL * rng.standard_t(3, shape),
    "skewed (exponential, 4 %)": lambda rng, shape: -0.04 * rng.exponential(size=shape),
    "15 % of launches 12 % slower": levels(0.15, 1.12),
    "30 % of launches 12 % slower": levels(0.30, 1.12),
    "15 % of launches 1.35 times slower": levels(0.15, 1.35),
    "5 % are 1.15 to 2 times slower": disturbed(0.05, 1.15, 2.0),
    "2 % disturbed, 2 to 10 times slower": disturbed(0.02),
    "5 % disturbed": disturbed(0.05),
    "5 % disturbed, scatter 10 %": disturbed(0.05, base=normal(0.10)),
    "disturbances that last": lasting,
    "scatter 1 to 8 % by cell": unequal(between),
    "the same, 5 % disturbed": disturbed(0.05, base=unequal(between)),
    "base scatters 5 times more": times(5.0, 0),
    "one cell scatters 5 times more": times(5.0, -1),
    "half of the cells 4 times more": times(4.0, half=True),
    "one cell: 40 % of launches 12 % slower": one_of_two_levels,
}
POWER_OF = ("normal, 3 %", "2 % disturbed, 2 to 10 times slower")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", type=int, default=1000, help="of each kind")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    print_errors(arguments.tables, rng)
    print_power(arguments.tables, rng)
    print_widths(max(20, arguments.tables // 10), rng)


def draw_table(draw: Draw, cells: int, rounds: int, rng: np.random.Generator) -> Values:
    """Logarithms of throughputs of equal cells, [cells, rounds]."""
    walk = np.cumsum(WALK * rng.normal(size=rounds))
    return walk + draw(rng, (cells, rounds))


def fit_table(logs: Values) -> Fit:
    rates = np.exp(logs)
    return Fit({str(cell): list(enumerate(own)) for cell, own in enumerate(rates)})


def misses(logs: Values) -> bool:
    """Whether any bracket of a table of equal cells misses 1."""
    fit, confidence = fit_table(logs), confidence_of_each(len(logs) - 1)
    return any(
        not fit.ratio(str(cell), "0").bracket(confidence).may_be(1.0)
        for cell in range(1, len(logs))
    )


def print_errors(tables: int, rng: np.random.Generator) -> None:
    head = [f"{cells} cells, {rounds}" for cells in CELLS for rounds in ROUNDS]
    print(f"## Tables in which some bracket misses, of {tables}\n")
    print(f"| scatter | {' | '.join(head)} |")
    print("|---|" + "---|" * len(head))
    for name, draw in FAMILIES.items():
        found = [
            np.mean(
                [misses(draw_table(draw, cells, rounds, rng)) for _ in range(tables)]
            )
            for cells in CELLS
            for rounds in ROUNDS
        ]
        print(f"| {name} | {' | '.join(f'{one:.3f}' for one in found)} |", flush=True)


def print_power(tables: int, rng: np.random.Generator) -> None:
    print("\n## A cell that differs by three times its scatter is found; 8 cells\n")
    print(f"| scatter | {' | '.join(f'{rounds} rounds' for rounds in ROUNDS)} |")
    print("|---|" + "---|" * len(ROUNDS))
    for name in POWER_OF:
        shares = []
        for rounds in ROUNDS:
            found = 0
            for _ in range(tables):
                logs = draw_table(FAMILIES[name], 8, rounds, rng)
                logs[1] += 3 * USUAL
                ratio = fit_table(logs).ratio("1", "0")
                found += not ratio.bracket(confidence_of_each(7)).may_be(1.0)
            shares.append(found / tables)
        print(f"| {name} | {' | '.join(f'{one:.3f}' for one in shares)} |", flush=True)


def print_widths(tables: int, rng: np.random.Generator) -> None:
    print("\n## Width of a bracket in scatters, and times more with one slow launch\n")
    print(f"| cells | {' | '.join(f'{rounds} rounds' for rounds in ROUNDS)} |")
    print("|---|" + "---|" * len(ROUNDS))
    for cells in CELLS:
        shown = []
        for rounds in ROUNDS:
            before, after = [], []
            for _ in range(tables):
                logs = draw_table(FAMILIES["normal, 3 %"], cells, rounds, rng)
                before.append(width(logs))
                logs[1, rounds // 2] -= math.log(3)
                after.append(width(logs))
            wider = np.mean(np.divide(after, before))
            shown.append(f"{np.mean(before) / USUAL:.1f}, x{wider:.2f}")
        print(f"| {cells} | {' | '.join(shown)} |", flush=True)


def width(logs: Values) -> float:
    bracket = fit_table(logs).ratio("1", "0").bracket(confidence_of_each(len(logs) - 1))
    assert bracket.low is not None
    assert bracket.high is not None
    return math.log(bracket.high / bracket.low)


if __name__ == "__main__":
    main()
