"""Do ratios hold on a machine that drifts? False alarms, and coverage of intervals.

Launches are simulated, so the true ratio is known. The machine becomes slower over the
run, in a line or in a step; launches scatter by 3 % in four distributions. Two cells
are equal, and take turns in rounds, or follow each other.

    python benchmarks/rounds.py        # some minutes
"""

from __future__ import annotations

import argparse

import numpy as np
from numpy.typing import NDArray
from simulation import LEVELS

from rankbench.results.numbers.difference import trend
from rankbench.results.numbers.ratios import find_ratio
from rankbench.results.numbers.statistics import CONFIDENCE

SHAPES = ("normal", "log-normal", "bimodal", "heavy tail")
SCATTER, DRIFT = 0.03, 0.10
COUNTS = (6, 8, 12, 20)

Values = NDArray[np.float64]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    tell_alarms(rng, arguments.pairs)
    tell_coverage(rng, arguments.pairs)
    tell_drift(rng, arguments.pairs)


def machine(kind: str, times: Values) -> Values:
    """Speed of the machine at times from 0 to 1."""
    return 1 - DRIFT * {"line": times, "step": times > 0.5, "none": 0 * times}[kind]


def noise(rng: np.random.Generator, shape: str, count: int, scatter: float) -> Values:
    levels = LEVELS[shape](rng, (count,))
    return np.asarray(np.exp(-scatter * levels / SPREADS[shape]))


SPREADS = {
    shape: float(LEVELS[shape](np.random.default_rng(0), (1_000_000,)).std())
    for shape in SHAPES
}


def launch(
    rng: np.random.Generator, shape: str, count: int, drift: str, order: str
) -> tuple[dict[int, float], dict[int, float]]:
    """Two equal cells, by round; without rounds in common if they follow each other."""
    times = np.arange(2 * count) / (2 * count)
    speed = machine(drift, times)
    values = [noise(rng, shape, count, SCATTER) for _ in range(2)]
    if order == "cells":
        found = values[0] * speed[:count], values[1] * speed[count:]
        rounds = range(count), range(count, 2 * count)
    else:
        first = rng.integers(0, 2, count)
        places = 2 * np.arange(count) + first, 2 * np.arange(count) + 1 - first
        found = values[0] * speed[places[0]], values[1] * speed[places[1]]
        rounds = range(count), range(count)
    one, other = (
        dict(zip(numbers, map(float, each), strict=True))
        for numbers, each in zip(rounds, found, strict=True)
    )
    return one, other


def tell_alarms(rng: np.random.Generator, pairs: int) -> None:
    print(f"## False alarms at {1 - CONFIDENCE:.0%}: two equal cells, {pairs} pairs\n")
    print("| machine | launches | order: rounds | order: cells |")
    print("|---|---|---|---|")
    for drift in ("none", "line", "step"):
        for count in COUNTS:
            shares = []
            for order in ("rounds", "cells"):
                alarms = 0
                for number in range(pairs):
                    shape = SHAPES[number % len(SHAPES)]
                    sides = launch(rng, shape, count, drift, order)
                    found = find_ratio(*sides, confidence=CONFIDENCE).different
                    alarms += found is not None and found <= 1 - CONFIDENCE
                shares.append(f"{alarms / pairs:.1%}")
            print(f"| {drift} | {count} | {' | '.join(shares)} |", flush=True)


def tell_coverage(rng: np.random.Generator, pairs: int) -> None:
    print(f"\n## Coverage of the paired {CONFIDENCE:.0%} interval, {pairs} pairs\n")
    print("The machine drifts in a line. The second cell scatters three times less.\n")
    print(f"| above, below | {' | '.join(f'{n} rounds' for n in COUNTS)} |")
    print("|---|" + "---|" * len(COUNTS))
    for above in SHAPES:
        for below in (above, "normal"):
            scatters = SCATTER, SCATTER if above == below else SCATTER / 3
            truth = true_ratio(above, below, scatters)
            shares = []
            for count in COUNTS:
                speed = machine("line", np.arange(count) / count)
                hits = 0
                for _ in range(pairs):
                    sides = [
                        dict(enumerate(map(float, noise(rng, s, count, by) * speed)))
                        for s, by in zip((above, below), scatters, strict=True)
                    ]
                    found = find_ratio(*sides, confidence=CONFIDENCE)
                    hits += found.estimate.may_be(truth)
                shares.append(f"{hits / pairs:.1%}")
            print(f"| {above}, {below} | {' | '.join(shares)} |", flush=True)


def true_ratio(above: str, below: str, scatters: tuple[float, float]) -> float:
    """The median of the ratio within a round."""
    rng = np.random.default_rng(0)
    values = [
        noise(rng, shape, 1_000_000, scatter)
        for shape, scatter in zip((above, below), scatters, strict=True)
    ]
    return float(np.median(values[0] / values[1]))


def tell_drift(rng: np.random.Generator, rows: int) -> None:
    print(f"\n## Rows that are marked `drifting`, one row alone, {rows} rows\n")
    print(f"| machine | {' | '.join(f'{n} launches' for n in COUNTS)} |")
    print("|---|" + "---|" * len(COUNTS))
    for drift in ("none", "line", "step"):
        shares = []
        for count in COUNTS:
            speed = machine(drift, np.arange(count) / count)
            marked = 0
            for number in range(rows):
                shape = SHAPES[number % len(SHAPES)]
                chance = trend(list(noise(rng, shape, count, SCATTER) * speed))
                marked += chance is not None and chance <= 1 - CONFIDENCE
            shares.append(f"{marked / rows:.1%}")
        print(f"| {drift} | {' | '.join(shares)} |", flush=True)


if __name__ == "__main__":
    main()
