"""The parent of ranks that torch.multiprocessing starts.

torch is imported where it is needed only, so that a child can pin itself early.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from rankbench.environ import Place


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m rankbench.rank.spawn")
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("spec", type=Path)
    arguments = parser.parse_args()

    from torch import multiprocessing
    from torch.distributed import TCPStore

    # The parent keeps the store, on a port that the kernel chooses, and the ranks join
    # it: choosing a free port first and opening it later would be a race.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    context = multiprocessing.spawn(
        _be_rank,
        (arguments.ranks, arguments.spec),
        nprocs=arguments.ranks,
        join=False,
    )
    try:
        while not context.join():
            continue
    except multiprocessing.ProcessExitedException:
        # It tells of the first one that it noticed, which need not be the first to go.
        for rank, process in enumerate(context.processes):
            print(f"rank {rank} ended with exit code {process.exitcode}")
        return 1
    return 0


def _be_rank(rank: int, ranks: int, spec: Path) -> None:
    place = Place(rank=rank, size=ranks, local_rank=rank, local_size=ranks, node=0)
    os.environ |= place.export()
    from rankbench.rank.__main__ import run_rank

    run_rank(spec)


if __name__ == "__main__":
    sys.exit(main())
