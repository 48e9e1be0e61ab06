"""How often `rankbench compare --at-least` errs, and how often it decides.

    python benchmarks/accepting.py [--experiments 2000]

A baseline and a new machine are simulated whose launches scatter by 3 %. The new one
reaches some share of the baseline; the line is at 95 %. A verdict is wrong if it is
PASS below the line or FAIL above it. Beside it stands that of one launch of each side.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from rankbench.results.compare.comparison import FAIL, PASS, compare
from rankbench.results.compare.sides import CellLaunches, Side

LINE, SCATTER = 0.95, 0.03
SHARES = (0.90, 0.93, 0.94, 0.96, 0.97, 1.00)
LAUNCHES = (6, 10, 20)

Draw = Callable[[np.random.Generator, int], NDArray[np.float64]]


def normal(random: np.random.Generator, count: int) -> NDArray[np.float64]:
    return random.normal(1, SCATTER, count)


def skewed(random: np.random.Generator, count: int) -> NDArray[np.float64]:
    """Some launches are slow; the scatter is the same."""
    slow = random.gamma(1.0, SCATTER, count)
    return 1 / (1 + slow)


def side(name: str, values: NDArray[np.float64]) -> Side:
    cell = CellLaunches(
        hash="h",
        status="ok",
        reason=None,
        launches=len(values),
        throughput=tuple(values),
        started=[f"{name} {n}" for n in range(len(values))],
    )
    return Side(name=name, experiment="x", cells={"row": cell})


def simulate(draw: Draw, share: float, launches: int, experiments: int) -> list[float]:
    """Shares of wrong and of decided verdicts, and of wrong ones by one launch."""
    random = np.random.default_rng(round(1000 * share) + launches)
    wrong = decided = single = 0
    for _ in range(experiments):
        old, new = draw(random, launches), share * draw(random, launches)
        verdict = compare([side("A", old), side("B", new)], at_least=LINE).verdict
        decided += verdict in (PASS, FAIL)
        wrong += verdict == (FAIL if share > LINE else PASS)
        single += (new[0] / old[0] > LINE) != (share > LINE)
    return [wrong / experiments, decided / experiments, single / experiments]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--experiments", type=int, default=2000)
    arguments = parser.parse_args()
    print("| scatter | launches | true share | wrong | decided | wrong by one launch |")
    print("|---|--:|--:|--:|--:|--:|")
    for draw in (normal, skewed):
        for launches in LAUNCHES:
            for share in SHARES:
                found = simulate(draw, share, launches, arguments.experiments)
                shown = " | ".join(f"{100 * one:.1f} %" for one in found)
                print(f"| {draw.__name__} | {launches} | {share:.2f} | {shown} |")


if __name__ == "__main__":
    main()
