"""Bus bandwidth by rankbench's sweep, over a bare loop of all-reduces: gloo, 2 ranks.

python benchmarks/collectives.py

Both run in turn in the same processes over the same connections.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import torch
from pairs import report
from torch import distributed
from torch.multiprocessing import spawn

from rankbench.environ import Place
from rankbench.rank.facts import collectives
from rankbench.rank.runtimes import process_group

RANKS, CALLS = 2, collectives.REPEATS
SIZES = (2**16, 2**20, 2**24)

# Gloo allocates a buffer in each call. Whether its pages must be asked for anew depends
# on what was freed before, by either: the two then differ by some per cent, at random.
# Here glibc keeps what it has.
KEEP_PAGES = {
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
    "MALLOC_MMAP_THRESHOLD_": str(2**25),  # the largest that it takes
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
            # A call lasts until its slowest rank is done; bandwidth is bytes over that.
            [
                int(size) / slowest / 1e9
                for slowest in map(max, *(r[kind][size] for r in of_ranks))
            ]
            for kind in ("sweep", "loop")
        )
        report(f"all_reduce of {int(size) // 2**10} KiB", ours, theirs, unit="GB/s")


def be_rank(rank: int, folder: Path, pairs: int, sizes: Sequence[int]) -> None:
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    place = Place(rank=rank, size=RANKS, local_rank=rank, local_size=RANKS, node=0)
    cpu = torch.device("cpu")
    process_group.join("gloo", place, f"file://{folder}/store", cpu)
    found: dict[str, dict[int, list[float]]] = {
        kind: {size: [] for size in sizes} for kind in ("sweep", "loop")
    }
    kinds = {"sweep": sweep, "loop": loop}
    for pair in range(pairs + 1):
        for size in sizes:
            # Side by side in time, and neither always first.
            for kind in sorted(kinds, reverse=bool(pair % 2)):
                seconds = kinds[kind](size)
                if pair:  # the first one warms up
                    found[kind][size].append(seconds)
    (folder / f"{rank}.json").write_text(json.dumps(found))
    process_group.leave()


def sweep(size: int) -> float:
    """Median seconds of an all-reduce, as ranks of a cell find it out."""
    with mock.patch.object(collectives, "SIZES", (size,)):
        (point,) = collectives.sweep(
            {"all_reduce": 1}, process_group, torch.device("cpu")
        )
    return statistics.median(point["seconds"])


def loop(size: int) -> float:
    """Median seconds of an all-reduce, as one would write it down."""
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
