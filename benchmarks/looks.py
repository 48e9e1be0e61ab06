"""What the looks of a rank cost a step of about 1 ms that do not time it.

These are the look at exchanged gradients, which ends before the timed window; the
counters of cores and quotas, which are read at its edges; and the clocks that tell a
suspension, which a thread reads all the time. Processes that have looked take turns, in
random order, with processes that have not. A step is CPU time of the main thread, a
process is the fastest tenth of its steps, which others change least. The CPU time of
the thread is a share of its life.

    OMP_NUM_THREADS=1 python benchmarks/looks.py
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
from pairs import median_of, report
from torch import nn

from rankbench.rank.facts.usage import Surroundings
from rankbench.rank.scripts.exchange import ExchangeProbe
from rankbench.rank.world.lifeline import Progress

SLEEP = 0.5  # seconds; ranks sleep for 3 s between two heartbeats, in the same turns
STEPS = 400


def measure(looks: bool) -> tuple[float, float]:
    """Milliseconds of a step of this process, and the share of its thread."""
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(64, 256)

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    step()
    taken: list[float] = []

    def run() -> None:
        for _ in range(STEPS):
            begun = time.thread_time_ns()
            step()
            taken.append((time.thread_time_ns() - begun) / 1e6)

    share = 0.0
    if looks:
        share = run_with_looks(step, run)
    else:
        step()
        run()
    return statistics.quantiles(taken, n=10)[0], share


def run_with_looks(step: Callable[[], None], run: Callable[[], None]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        probe = ExchangeProbe(Path(folder) / "trace.json")
        progress = Progress(Path(folder), 0)
        probe.begin()
        step()
        probe.end()
        assert probe.read(0) is not None
    surroundings = Surroundings(progress)
    surroundings.begin()
    is_over, shares = threading.Event(), []

    def watch() -> None:
        begun, used = time.perf_counter(), time.thread_time()
        while not is_over.is_set():
            progress.sleep(SLEEP)
        passed = time.perf_counter() - begun
        shares.append((time.thread_time() - used) / passed)

    thread = threading.Thread(target=watch)
    thread.start()
    run()
    surroundings.end()
    is_over.set()
    thread.join()
    return shares[0]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=60)
    pairs = parser.parse_args().pairs
    context = multiprocessing.get_context("fork")
    found: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    # Each process does one task, so that no look has a past.
    with context.Pool(1, maxtasksperchild=1) as pool:
        for _ in range(pairs):
            for looks in random.sample([True, False], 2):
                found[looks].append(pool.apply(measure, [looks]))
    ours, shares = zip(*found[True], strict=True)
    report("step after the looks", ours, [s for s, _ in found[False]], unit="ms")
    share, low, high = median_of(shares)
    print(f"thread that reads clocks: {share:.4%} [{low:.4%}, {high:.4%}] of the time")


if __name__ == "__main__":
    main()
