"""Can the statistics be trusted? False alarms, power, and coverage of the intervals.

False alarms and power are measured on real launches: of an experiment that this program
runs (two small cells, many launches), or of existing result directories. It draws two
runs from the launches of one cell, where nothing has changed, so every reported
difference is a false alarm. Coverage is measured on simulated launches, whose true
values are known.

    python benchmarks/comparing.py --launches 120       # half an hour on two cores
    python benchmarks/comparing.py --results DIR ...    # five minutes
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from simulation import coverages, draw_levels

from rankbench.results.compare.sides import read_side
from rankbench.results.numbers.difference import differ

ROOT = Path(__file__).resolve().parents[1]

EXPERIMENT = """\
name: comparing
blocks:
  - {{strategy: single, topology: 1x1}}
  - {{strategy: ddp, backend: gloo, topology: 1x2}}
model: convnet
data: digits
batch_size: 64
launcher: spawn
launches: {launches}
steps: 40
warmup: 10
gate: false
"""

LEVEL, FIXED, SLOWDOWN = 0.05, 0.07, 0.03
POWER = 0.8
COUNTS = (6, 10, 15, 20, 30, 40)
SCATTER = (0.01, 0.02, 0.03, 0.05, 0.08)  # interquartile range / median

Values = NDArray[np.float64]
Pair = tuple[Values, Values]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--launches", type=int, default=60, help="launches per cell")
    parser.add_argument("--results", type=Path, nargs="+", help="run nothing")
    parser.add_argument("--pairs", type=int, default=2000)
    parser.add_argument("--runs", type=int, default=2000, help="simulated runs")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    with measured(arguments.launches, arguments.results) as folders:
        pools = {
            f"{folder.name}/{name}": np.array(cell.throughput)
            for folder in folders
            for name, cell in read_side(folder).cells.items()
            if len(cell.throughput) >= 2 * min(COUNTS)
        }
    tell_pools(pools)
    tell_false_alarms(list(pools.values()), arguments.pairs, rng)
    tell_power(pools, arguments.pairs, rng)
    tell_budget(arguments.pairs // 4, rng)
    tell_coverage(arguments.runs, arguments.seed)


@contextmanager
def measured(launches: int, given: list[Path] | None) -> Iterator[list[Path]]:
    """The given result directories, or that of an experiment that is run now."""
    if given:
        yield given
        return
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        shutil.copy(ROOT / "Snakefile", root)
        for name in ("containers", "workflow", "local_profile"):
            shutil.copytree(ROOT / name, root / name)
        (root / "config.yaml").write_text(EXPERIMENT.format(launches=launches))
        command = [sys.executable, "-m", "snakemake", "--profile", "local_profile"]
        environ = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        subprocess.run(command, cwd=root, env=environ, check=True)
        yield [root / "results" / "comparing"]


def tell_pools(pools: dict[str, Values]) -> None:
    print("## Launches\n")
    print("| cell | launches | median | interquartile range | autocorrelation |")
    print("|---|---|---|---|---|")
    for name, pool in pools.items():
        low, center, high = np.quantile(pool, (0.25, 0.5, 0.75))
        lag = stats.spearmanr(pool[1:], pool[:-1]).statistic
        print(
            f"| {name} | {len(pool)} | {center:.4g}/s | "
            f"{100 * (high - low) / center:.1f} % | {lag:.2f} |"
        )


def tell_false_alarms(
    pools: list[Values], pairs: int, rng: np.random.Generator
) -> None:
    """Print the false alarms of runs drawn at random, alternating and in sequence."""
    print(f"\n## False alarms of a test at {100 * LEVEL:g} %\n")
    print(f"| launches | order | pairs | alarms | at most (95 %) | fixed {FIXED:.0%} |")
    print("|---|---|---|---|---|---|")
    orders: dict[str, Callable[[int], Iterator[Pair]]] = {
        "at random": lambda count: draw(pools, count, pairs, rng),
        "taking turns": lambda count: cut(pools, count, take_turns=True),
        "one run, then the other": lambda count: cut(pools, count, take_turns=False),
    }
    for count in COUNTS:
        for order, get in orders.items():
            found = [judge(*pair) for pair in get(count)]
            if not found:
                continue
            tested, fixed = (sum(alarms) for alarms in zip(*found, strict=True))
            bound = stats.binomtest(tested, len(found), alternative="less")
            most = bound.proportion_ci(0.95).high
            print(
                f"| {count} | {order} | {len(found)} | {tested / len(found):.1%} | "
                f"{most:.1%} | {fixed / len(found):.1%} |"
            )


def tell_power(pools: dict[str, Values], pairs: int, rng: np.random.Generator) -> None:
    """Print how often a comparison detects that all launches are slower by SLOWDOWN."""
    print(f"\n## Power: a slowdown of {100 * SLOWDOWN:g} % is found\n")
    print("| cell | " + " | ".join(f"{count} launches" for count in COUNTS) + " |")
    print("|---|" + "---|" * len(COUNTS))
    for name, pool in pools.items():
        shares = []
        for count in COUNTS:
            drawn = draw([pool], count, pairs // 4, rng)
            found = [is_slower(old, (1 - SLOWDOWN) * new) for old, new in drawn]
            shares.append(f"{np.mean(found):.2f}" if found else "")
        print(f"| {name} | {' | '.join(shares)} |")


def tell_budget(pairs: int, rng: np.random.Generator) -> None:
    """Print how many launches detect SLOWDOWN, for each scatter of the launches."""
    print(f"\n## Launches that find {SLOWDOWN:.0%} with power {POWER}, simulated\n")
    print("| scatter of launches | normal | skewed |")
    print("|---|---|---|")
    for scatter in SCATTER:
        needed = [fewest(kind, scatter, pairs, rng) for kind in ("normal", "skewed")]
        print(f"| {scatter:.0%} | {' | '.join(needed)} |")


def fewest(kind: str, scatter: float, pairs: int, rng: np.random.Generator) -> str:
    for count in (6, 7, 8, 10, 12, 15, 20, 25, 30, 40, 50, 60, 80, 100):
        shape = pairs, count
        old, new = (draw_levels(rng, kind, shape, scatter) for _ in range(2))
        found = [
            is_slower(*pair) for pair in zip(old, (1 - SLOWDOWN) * new, strict=True)
        ]
        if np.mean(found) >= POWER:
            return str(count)
    return "more than 100"


def tell_coverage(runs: int, seed: int) -> None:
    print(f"\n## Coverage of the 95 % intervals, {runs} simulated runs each\n")
    print("| interval | launches | coverage | excess width |")
    print("|---|---|---|---|")
    for found in coverages(runs, (6, 8, 10, 20), seed):
        print(
            f"| {found.what} | {found.launches} | {found.hits:.1%} | "
            f"{found.excess:+.0%} |"
        )


def judge(old: Values, new: Values) -> tuple[bool, bool]:
    """Whether the test reports a difference, and whether a fixed threshold does."""
    p_value = differ(new, old).p_value
    assert p_value is not None
    change = np.median(new) / np.median(old) - 1
    return p_value <= LEVEL, bool(abs(change) > FIXED)


def is_slower(old: Values, new: Values) -> bool:
    found = differ(new, old)
    assert found.p_value is not None
    return found.p_value <= LEVEL and found.superiority < 0.5


def draw(
    pools: list[Values], count: int, pairs: int, rng: np.random.Generator
) -> Iterator[Pair]:
    """Pairs of runs, drawn from the launches of one cell without replacement."""
    large = [pool for pool in pools if len(pool) >= 2 * count]
    for number in range(pairs if large else 0):
        pool = large[number % len(large)]
        chosen = rng.permutation(pool)[: 2 * count]
        yield chosen[:count], chosen[count:]


def cut(pools: list[Values], count: int, *, take_turns: bool) -> Iterator[Pair]:
    """Pairs of runs, cut from consecutive launches of one cell."""
    for pool in pools:
        for begin in range(len(pool) - 2 * count + 1):
            part = pool[begin : begin + 2 * count]
            if take_turns:
                yield part[::2], part[1::2]
            else:
                yield part[:count], part[count:]


if __name__ == "__main__":
    main()
