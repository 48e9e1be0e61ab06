"""Is `rankbench history` quick, and does it see what it should?

It makes stores by simulation: each night's level scatters by `SCATTER` for each cell,
and launches of a night by half of that around it. Where nothing changes, every change
that is found is a false alarm. A step hits one cell of a store, or all of them.

    PYTHONPATH=tests python benchmarks/history.py         # some minutes on two cores
    PYTHONPATH=tests python benchmarks/history.py --runs 100 --stores 40
    PYTHONPATH=tests python benchmarks/history.py --only series --plot power.svg

`series` are stores of one cell whose scatter is that of the launches of a bundle: their
deviations from the median of their cell, drawn with replacement.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from rankbench.results.compare.sides import (
    CellLaunches,
    Side,
    encode_run,
    read_side,
)
from rankbench.results.history.changes import History, follow
from rankbench.results.history.store import add_run, read_store
from rankbench.results.history.text import write_page
from unit.synthetic import write_many

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("speed", "alarms", "nights", "detection", "series")
SCATTER, STEP, LAUNCHES = 0.02, 0.05, 6
SIZES = (0.0, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0)  # of a step, in standard deviations
SOON = 3  # runs within which a step should be found

Values = NDArray[np.float64]
Shape = Callable[[NDArray[np.int_]], Values]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=1000, help="of the large store")
    parser.add_argument("--cells", type=int, default=100, help="of the large store")
    parser.add_argument("--stores", type=int, default=200, help="small ones, of a kind")
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--bundle", type=Path, default=ROOT / "docs/example")
    parser.add_argument("--plot", type=Path, help="power over the size of a step")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    parts = {
        "speed": lambda: tell_speed(arguments.runs, arguments.cells, rng),
        "alarms": lambda: tell_alarms(arguments.stores, rng),
        "nights": lambda: tell_nights(arguments.stores, rng),
        "detection": lambda: tell_detection(arguments.stores, rng),
        "series": lambda: tell_series(arguments, rng),
    }
    for name, tell in parts.items():
        if arguments.only in (None, name):
            tell()


def tell_speed(runs: int, cells: int, rng: np.random.Generator) -> None:
    """A store of A/A series, one in ten of them with a step, a drift or a bad run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shapes = (step_at(runs // 2), drift, bad_at(runs // 3))
        levels = draw(rng, runs, cells)
        for cell in range(0, cells, 10):
            levels[:, cell] += shapes[cell // 10 % len(shapes)](np.arange(runs))
        store = folder / "store"
        for number, one in enumerate(levels):
            add_run(store, encode_run(make_run(rng, number, one)))
        layout = write_many(folder / "results", cells)
        print(f"{runs + 1} runs of {cells} cells, {LAUNCHES} launches each")
        with timed("add one run"):
            add_run(store, encode_run(read_side(layout.root)))
        with timed("read the store"):
            stored = read_store(store)
        with timed("find changes"):
            history = follow(stored.runs)
        with timed("write the page"):
            write_page(folder / "page.html", stored, history)
        print(f"  {len(history.changes)} changes")


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Print seconds, and those of the CPU, which are less if the machine is busy."""
    wall, cpu = time.perf_counter(), time.process_time()
    yield
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(f"  {what}: {wall:.1f} s, of the CPU {cpu:.1f} s")


def tell_alarms(stores: int, rng: np.random.Generator) -> None:
    """How many stores, in which nothing changes, have any change."""
    print("\nstores without a change that show one")
    for runs, cells in ((12, 1), (30, 10), (30, 100), (100, 10)):
        alarms = sum(
            bool(simulate(rng, draw(rng, runs, cells)).changes) for _ in range(stores)
        )
        test = stats.binomtest(alarms, stores, alternative="less")
        most = test.proportion_ci(0.95).high
        print(
            f"  {runs} runs, {cells} cells: {alarms / stores:.1%} of {stores} "
            f"(at most {most:.1%}, 95 % bound)"
        )


def tell_nights(stores: int, rng: np.random.Generator) -> None:
    """How often an exit status of 1 is false, by looking after each run."""
    nights, before, cells = 100, 30, 10
    alarms = [
        sum(
            follow(runs[:count]).begins_worse
            for count in range(before + 1, before + nights + 1)
        )
        for runs in (
            make_runs(rng, draw(rng, before + nights, cells))
            for _ in range(max(5, stores // 20))
        )
    ]
    print(
        f"\nfalse alarms in {nights} nights, {cells} cells, by looking after each run: "
        f"mean {np.mean(alarms):.1f} of {len(alarms)} stores, at most {max(alarms)}"
    )


def tell_detection(stores: int, rng: np.random.Generator) -> None:
    """How soon a slowdown by STEP is found, by looking after each run."""
    nights, before = 20, 30
    print(
        f"\nslowdown by {STEP:.0%} at {SCATTER:.0%} scatter of runs, after {before} "
        f"runs: found within {nights} runs, median of the runs until then"
    )
    for cells, hit in ((1, 1), (10, 1), (10, 10), (100, 1)):
        delays = []
        for _ in range(max(10, stores // 10)):
            levels = draw(rng, before + nights, cells)
            levels[:, :hit] += step_at(before)(np.arange(before + nights))[:, None]
            delays.append(find_delay(rng, levels, before))
        known = [delay for delay in delays if delay is not None]
        middle = f"{np.median(known):g}" if known else "none"
        print(
            f"  {hit} of {cells} cells: {len(known) / len(delays):.0%} of "
            f"{len(delays)}, median {middle}, at most {max(known, default=0)}"
        )


def tell_series(arguments: argparse.Namespace, rng: np.random.Generator) -> None:
    """False alarms and power for series of one cell, with the scatter of a bundle."""
    residuals = find_residuals(arguments.bundle)
    spread = float(residuals.std())
    count, before = arguments.stores, 30
    print(
        f"\nseries of one cell, scatter of {len(residuals)} launches of "
        f"{arguments.bundle.name}: standard deviation {spread:.1%}"
    )

    def levels(runs: int) -> Values:
        return np.log(1000) + rng.choice(residuals, (runs, 1))

    alarms = spiked = 0
    for _ in range(count):
        series = levels(before)
        shows = bool(simulate(rng, series).changes)
        alarms += shows
        series[rng.integers(before)] += np.log(0.5)
        spiked += bool(simulate(rng, series).changes) and not shows
    print(f"  {before} runs without a change: {tell_share(alarms, count)} show one")
    print(f"  more, if one run is slower by 50 %: {tell_share(spiked, count)}")
    found = {}
    for size in SIZES:
        delays = []
        for _ in range(count):
            series = levels(before + SOON)
            series[before:] -= size * spread
            delays.append(find_delay(rng, series, before))
        found[size] = sum(delay is not None for delay in delays)
        share = tell_share(found[size], count)
        print(f"  a step of {size:g} standard deviations: {share} within {SOON} runs")
    if arguments.plot:
        draw_power(found, count, arguments.plot)


def find_residuals(bundle: Path) -> Values:
    """Logarithms of launches over the median of their cell, of cells with some."""
    cells = read_side(bundle).cells.values()
    logs = [np.log(cell.throughput) for cell in cells]
    several = [values for values in logs if len(values) > 2]
    # A median takes a degree of freedom, as a mean does.
    return np.concatenate(
        [(v - np.median(v)) * np.sqrt(len(v) / (len(v) - 1)) for v in several]
    )


def tell_share(found: int, count: int) -> str:
    low, high = stats.binomtest(found, count).proportion_ci(0.95)
    return f"{found / count:.1%} of {count} [{low:.1%}, {high:.1%}]"


def draw_power(found: dict[float, int], count: int, file: Path) -> None:
    import seaborn as sns
    from matplotlib import pyplot as plt

    sns.set_theme(style="whitegrid", context="paper")
    figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
    sizes = list(found)
    shares = np.array([found[size] / count for size in sizes])
    ends = [stats.binomtest(n, count).proportion_ci(0.95) for n in found.values()]
    errors = np.abs(np.array([(end.low, end.high) for end in ends]).T - shares)
    axes.errorbar(sizes, shares, errors, marker="o", capsize=3)
    axes.axhline(0.9, linestyle=":", color="grey")
    axes.set(
        xlabel="size of the step (standard deviations of a run)",
        ylabel=f"found within {SOON} runs",
        ylim=(0, 1.02),
    )
    figure.savefig(
        file, dpi=150, metadata={"Date": None} if file.suffix == ".svg" else None
    )


def find_delay(rng: np.random.Generator, levels: Values, before: int) -> int | None:
    """The number of slow runs until the newest one shows that a cell became worse."""
    runs = make_runs(rng, levels)
    for count in range(before + 1, len(runs) + 1):
        if follow(runs[:count]).begins_worse:
            return count - before
    return None


def draw(rng: np.random.Generator, runs: int, cells: int) -> Values:
    """Logarithms of the levels of cells that do not change: [runs, cells]."""
    return rng.normal(np.log(1000), SCATTER, (runs, cells))


def step_at(begin: int) -> Shape:
    return lambda at: np.where(at >= begin, np.log(1 - STEP), 0.0)


def bad_at(place: int) -> Shape:
    return lambda at: np.where(at == place, np.log(0.7), 0.0)


def drift(at: NDArray[np.int_]) -> Values:
    return np.log(1 - STEP) * at / len(at)


def simulate(rng: np.random.Generator, levels: Values) -> History:
    return follow(make_runs(rng, levels))


def make_runs(rng: np.random.Generator, levels: Values) -> list[Side]:
    return [make_run(rng, number, one) for number, one in enumerate(levels)]


def make_run(rng: np.random.Generator, number: int, levels: Values) -> Side:
    """The run of one night."""
    begun = datetime(2023, 1, 1, 2, tzinfo=UTC) + timedelta(days=number)
    noise = rng.normal(0, SCATTER / 2, (len(levels), LAUNCHES))
    times = [
        (begun + timedelta(minutes=launch)).isoformat() for launch in range(LAUNCHES)
    ]
    facts = {"torch": (f"2.{number // 90}.0",), "host": ("node1", "node2")}
    cells = {
        f"ddp.gloo.1x2.convnet.digits.seed={cell}": CellLaunches(
            hash=hashlib.sha256(str(cell).encode()).hexdigest()[:16],
            status="ok",
            reason=None,
            facts=facts,
            started=tuple(times),
            rounds=(None,) * LAUNCHES,
            throughput=tuple(np.exp(level + noise[cell]).tolist()),
        )
        for cell, level in enumerate(levels)
    }
    return Side(
        name=str(number),
        experiment="simulated",
        cells=cells,
        begun=times[0],
        ended=times[-1],
    )


if __name__ == "__main__":
    main()
