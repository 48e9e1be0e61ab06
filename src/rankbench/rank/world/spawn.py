"""Starts the ranks of a host by torch.multiprocessing.

torch is imported within functions, so that a child can pin itself to its cores first.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from rankbench.environ import Place
from rankbench.launch_spec import LOOPBACK
from rankbench.rank.world.places import (
    add_place,
    choose_rendezvous,
    places_here,
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m rankbench.rank.world.spawn")
    add_place(parser)
    parser.add_argument("spec", type=Path)
    arguments = parser.parse_args()
    places = places_here(arguments.nodes, arguments.ranks)

    from torch import multiprocessing
    from torch.distributed import TCPStore

    if arguments.nodes > 1 or os.environ.get("USE_LIBUV") == "0":
        # Rank 0 opens the store, as in `manual`: either the port is given, or torch has
        # no libuv and so cannot join a store that another process has opened.
        _, variables = choose_rendezvous(
            "env", arguments.spec.parent, arguments.address, arguments.port
        )
    else:
        # The parent opens the store on a port that the kernel chooses, and the ranks
        # join it. Choosing a free port first and opening it later would be a race.
        store = TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False)
        variables = {
            "MASTER_ADDR": LOOPBACK,
            "MASTER_PORT": str(store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
    os.environ |= variables
    context = multiprocessing.spawn(
        _be_rank, (places, arguments.spec), nprocs=len(places), join=False
    )
    try:
        while not context.join():
            continue
    except multiprocessing.ProcessExitedException:
        # The exception names one rank, which need not be the first that failed.
        for place, process in zip(places, context.processes, strict=True):
            print(f"rank {place.rank} ended with exit code {process.exitcode}")
        return 1
    return 0


def _be_rank(local_rank: int, places: list[Place], spec: Path) -> None:
    os.environ |= places[local_rank].export()
    from rankbench.rank.__main__ import run_rank

    run_rank(spec)


if __name__ == "__main__":
    sys.exit(main())
