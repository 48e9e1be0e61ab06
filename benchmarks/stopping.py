"""Do the rules that end launches keep their promises, and what do they save?

Launches are simulated, so the true values are known. They scatter as those of recorded
cells do (`--scatters`, `--results`), in four distributions, and are independent or
autocorrelated.

    python benchmarks/stopping.py            # a minute on one core
    python benchmarks/stopping.py --cells 2000

Printed: coverage of the intervals at the stops of `until`; launches that `until` and
`best` save; how often `best` drops the fastest cell; time and memory of choosing the
next launch among many cells.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import signal
from simulation import LEVELS

from rankbench.matrix.catalog import load_catalog
from rankbench.matrix.experiment import load_experiment
from rankbench.record import Record
from rankbench.results.compare.sides import read_side
from rankbench.results.numbers.statistics import geometric_mean
from rankbench.stopping import LaunchHistory, Rule, find_enough, half_width

ROOT = Path(__file__).resolve().parents[1]

TARGET, AT_MOST = 0.03, 40
UNTIL, BEST = Rule(AT_MOST, "until", TARGET), Rule(AT_MOST, "best", TARGET)
SHAPES = ("normal", "log-normal", "bimodal", "heavy tail")
# Launches of our records scatter by 1 to 9 %, those of docs/example by 4 to 9 %.
SCATTERS = (0.01, 0.02, 0.03, 0.05, 0.08)
# Experiments with so many alternatives, whose speeds are spread evenly up to 1.
RIVALS, SLOWEST = 10, 0.5

Values = NDArray[np.float64]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--scatters",
        type=float,
        nargs="+",
        default=SCATTERS,
        help="standard deviations of logarithms, equally often",
    )
    parser.add_argument(
        "--results", type=Path, nargs="+", default=[], help="also those of these cells"
    )
    parser.add_argument(
        "--cells", type=int, default=20_000, help="of each distribution"
    )
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    scatters = sorted([*arguments.scatters, *read_scatters(arguments.results)])
    told = ", ".join(f"{100 * one:.1f}" for one in scatters)
    print(f"scatter (standard deviation of logarithms, %), equally often: {told}\n")
    tell_until(scatters, arguments.cells, arguments.seed)
    tell_best(scatters, arguments.cells // 20, arguments.seed)
    tell_choosing()


def read_scatters(folders: list[Path]) -> list[float]:
    """The scatter of each cell with six launches or more, ascending."""
    found = []
    for folder in folders:
        for cell in read_side(folder).cells.values():
            if len(cell.throughput) >= 6:
                found.append(float(np.log(cell.throughput).std(ddof=1)))
    return sorted(found)


def draw(
    rng: np.random.Generator, shape: str, scatter: float, count: int, lag: float = 0.0
) -> Values:
    """Throughput of launches whose geometric mean is 1."""
    levels = LEVELS[shape](rng, (count,) if not lag else (count + 50,))
    if lag:
        levels = signal.lfilter([np.sqrt(1 - lag**2)], [1, -lag], levels)[-count:]
    spread, middle = SPREADS[shape]
    return np.asarray(np.exp(-scatter * (levels - middle) / spread))


def _spreads() -> dict[str, tuple[float, float]]:
    """Standard deviation and mean of each distribution."""
    rng = np.random.default_rng(0)
    many = {shape: LEVELS[shape](rng, (1_000_000,)) for shape in SHAPES}
    return {name: (float(v.std()), float(v.mean())) for name, v in many.items()}


SPREADS = _spreads()
# Any cell: the rules ask how many devices it has, and what it is compared with.
(CELL, *_) = load_experiment(
    Path("config.yaml"), load_catalog(), cuda=False
).cells.values()


def records_of(rates: Values, first: int = 0) -> list[Record]:
    return [
        {
            "status": "ok",
            "cause": None,
            "samples": float(rate),
            "ranks": [{"window_s": 1.0}],
            "round": {"seed": 1, "number": first + number, "position": 1},
            "seconds": {"launch": 1.0},
        }
        for number, rate in enumerate(rates, start=1)
    ]


def launched(rule: Rule, rates: Values) -> LaunchHistory:
    return LaunchHistory(rule, CELL, records_of(rates))


def tell_until(scatters: list[float], cells: int, seed: int) -> None:
    print(f"## launches: {{until: {TARGET:.0%}, at_most: {AT_MOST}}}\n")
    print(
        "| launches | lag 1 | coverage at the stop | within 3 % | launches, mean | "
        "smallest fixed number with that share | ratio |"
    )
    print("|---|---|---|---|---|---|---|")
    for shape, lag in [*((s, 0.0) for s in SHAPES), ("normal", 0.3), ("normal", 0.6)]:
        rng = np.random.default_rng(seed)
        rows = np.array(
            [
                draw(rng, shape, scatter, AT_MOST, lag)
                for scatter in itertools.islice(itertools.cycle(scatters), cells)
            ]
        )
        hits = reached = total = 0
        for rates in rows:
            enough = find_enough({"cell": launched(UNTIL, rates)})["cell"]
            used = rates[: enough.after]
            estimate = geometric_mean(list(used))
            hits += estimate.may_be(1.0)
            reached += enough.why.startswith("reached")
            total += enough.after
        fixed = smallest_fixed(rows, reached / cells)
        mean = total / cells
        ratio = "" if fixed is None else f"{mean / fixed:.2f}"
        print(
            f"| {shape} | {lag:g} | {hits / cells:.1%} | {reached / cells:.1%} | "
            f"{mean:.1f} | {fixed or f'more than {AT_MOST}'} | {ratio} |",
            flush=True,
        )


def smallest_fixed(rows: Values, share: float) -> int | None:
    """The number of launches of each cell that gives so many narrow 95 % intervals."""
    for count in range(6, AT_MOST + 1):
        widths = [half_width(list(rates[:count])) for rates in rows[:4000]]
        if (
            np.mean([width is not None and width <= TARGET for width in widths])
            >= share
        ):
            return count
    return None


def tell_best(scatters: list[float], experiments: int, seed: int) -> None:
    print(f"\n## launches: {{best: {TARGET:.0%}, at_most: {AT_MOST}}}\n")
    print(
        f"{RIVALS} cells whose speeds are spread evenly from {SLOWEST} to 1, "
        f"{experiments} experiments. A choice is right if it is within {TARGET:.0%} of "
        "the fastest.\n"
    )
    print(
        "| launches | fastest dropped | right choices | launches of a cell, mean | "
        "smallest fixed number as often right | ratio |"
    )
    print("|---|---|---|---|---|---|")
    for shape in SHAPES:
        rng = np.random.default_rng(seed)
        dropped = right = total = 0
        drawn: list[tuple[Values, Values]] = []
        for number in range(experiments):
            speeds = np.sort(rng.uniform(SLOWEST, 1, RIVALS))
            scatter = scatters[number % len(scatters)]
            rates = np.array(
                [speed * draw(rng, shape, scatter, AT_MOST) for speed in speeds]
            )
            drawn.append((speeds, rates))
            used, gone = play(rates)
            chosen = max(
                (one for one in range(RIVALS) if one not in gone),
                key=lambda one: np.median(rates[one, : used[one]]),
            )
            dropped += RIVALS - 1 in gone
            right += speeds[chosen] >= (1 - TARGET) * speeds[-1]
            total += sum(used.values())
        mean = total / experiments / RIVALS
        fixed = fixed_choice(drawn, right / experiments)
        ratio = "" if fixed is None else f"{mean / fixed:.2f}"
        print(
            f"| {shape} | {dropped / experiments:.1%} | {right / experiments:.1%} | "
            f"{mean:.1f} | {fixed or f'more than {AT_MOST}'} | {ratio} |",
            flush=True,
        )


def play(rates: Values) -> tuple[dict[int, int], set[int]]:
    """Launch cells in rounds until the rule needs no more.

    Returns:
        The launches of each cell, and the cells that were dropped.
    """
    cells = {str(one): launched(BEST, rates[one, :0]) for one in range(len(rates))}
    every = {str(one): records_of(rates[one]) for one in range(len(rates))}
    enough = {}
    for look in BEST.looks:
        for name, cell in cells.items():
            if name not in enough:
                cell.records = every[name][:look]
        enough = find_enough(cells)
        if len(enough) == len(cells):
            break
    used = {int(name): one.after for name, one in enough.items()}
    return used, {int(n) for n, one in enough.items() if "dropped" in one.why}


def fixed_choice(drawn: list[tuple[Values, Values]], share: float) -> int | None:
    for count in range(1, AT_MOST + 1):
        right = [
            speeds[np.median(rates[:, :count], axis=1).argmax()]
            >= (1 - TARGET) * speeds[-1]
            for speeds, rates in drawn
        ]
        if np.mean(right) >= share:
            return count
    return None


def tell_choosing(cells: int = 1000) -> None:
    print(f"\n## Choosing the next launch, {cells} cells, {AT_MOST} launches each\n")
    rng = np.random.default_rng(0)
    found = {
        str(one): launched(UNTIL, draw(rng, "normal", 0.1, AT_MOST))
        for one in range(cells)
    }
    begun = time.perf_counter()
    find_enough(found)
    seconds = time.perf_counter() - begun
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"judging all cells after a round: {1e3 * seconds:.0f} ms; {memory:.0f} MiB "
        "with numpy and scipy, which jobs do not import"
    )


if __name__ == "__main__":
    main()
