"""Bandwidth in rankbench's sweep, compared with a bare loop of all-reduces.

python benchmarks/collectives.py

Both run over gloo on 2 ranks, in turn, in the same processes and over the same
connections.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from unittest import mock

import torch
from pairs import report
from torch import distributed
from torch.multiprocessing import spawn

from rankbench.environ import Place
from rankbench.rank.facts import collectives
from rankbench.rank.strategies.base import Operation, World
from rankbench.rank.world import process_group

RANKS, CALLS = 2, collectives.REPEATS
SIZES = (2**16, 2**20, 2**24)

# Gloo allocates a buffer in each call. Whether glibc must request new pages for it
# depends on earlier calls, so the two would differ by some per cent at random. With
# these settings, glibc keeps freed pages.
KEEP_PAGES = {
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
    "MALLOC_MMAP_THRESHOLD_": str(2**25),  # the maximum of glibc
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=SIZES, metavar="BYTES", help="of a call"
    )
    arguments = parser.parse_args()
    pairs, sizes = arguments.pairs, arguments.sizes
    os.environ.update(KEEP_PAGES)  # read by the processes that are started next
    with tempfile.TemporaryDirectory() as folder:
        spawn(be_rank, (Path(folder), pairs, sizes), nprocs=RANKS)
        of_ranks = [
            json.loads(Path(folder, f"{rank}.json").read_text())
            for rank in range(RANKS)
        ]
    for size in map(str, sizes):
        ours, theirs = (
            # The duration of a call is that of its slowest rank.
            [
                int(size) / slowest / 1e9
                for slowest in map(max, *(r[kind][size] for r in of_ranks))
            ]
            for kind in ("sweep", "loop")
        )
        report(f"all_reduce of {int(size) // 2**10} KiB", ours, theirs, unit="GB/s")


def be_rank(rank: int, folder: Path, pairs: int, sizes: Sequence[int]) -> None:
    """Time both in one rank, and write the seconds of each call into the folder."""
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    place = Place(rank=rank, size=RANKS, local_rank=rank, local_size=RANKS, node=0)
    cpu = torch.device("cpu")
    process_group.join("gloo", place, f"file://{folder}/store", cpu)
    world = World(rank, RANKS, rank, cpu, (cpu,), "gloo", 1)
    found: dict[str, dict[int, list[float]]] = {
        kind: {size: [] for size in sizes} for kind in ("sweep", "loop")
    }
    kinds: dict[str, Callable[[int], float]] = {
        "sweep": partial(sweep, world),
        "loop": loop,
    }
    for pair in range(pairs + 1):
        for size in sizes:
            # The two follow each other directly, and take turns in being first.
            for kind in sorted(kinds, reverse=bool(pair % 2)):
                seconds = kinds[kind](size)
                if pair:  # the first pair is a warm-up
                    found[kind][size].append(seconds)
    (folder / f"{rank}.json").write_text(json.dumps(found))
    process_group.leave()


def sweep(world: World, size: int) -> float:
    """Median seconds of an all-reduce, measured by the sweep of a cell's ranks."""
    with mock.patch.object(collectives, "SIZES", {"cpu": (size,)}):
        operations = [Operation("all_reduce", 1.0)]
        (point,) = collectives.sweep(operations, process_group, world, 1)
    return statistics.median(point["seconds"])


def loop(size: int) -> float:
    """Median seconds of an all-reduce, measured by a bare loop."""
    tensor = torch.zeros(size // 4)
    for _ in range(2):
        distributed.all_reduce(tensor)
    distributed.barrier()
    seconds = []
    for _ in range(CALLS):
        begun = time.perf_counter()
        distributed.all_reduce(tensor)
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds)


if __name__ == "__main__":
    main()
