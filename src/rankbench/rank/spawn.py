"""The parent of ranks that torch.multiprocessing starts.

torch is imported where it is needed only, so that a child can pin itself early.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from rankbench.environ import Place
from rankbench.rank.manual import add_place, places_here


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m rankbench.rank.spawn")
    add_place(parser)
    parser.add_argument("spec", type=Path)
    arguments = parser.parse_args()
    places = places_here(arguments.nodes, arguments.ranks)

    from torch import multiprocessing
    from torch.distributed import TCPStore

    port = arguments.port or 0
    # The first host's parent keeps the store, on one host at a port that the kernel
    # chooses, and ranks join it: choosing a port first, opening it later is a race.
    if places[0].node == 0:
        store = TCPStore(
            arguments.address,
            port,
            is_master=True,
            wait_for_workers=False,
            # As torch reads it for its own stores; some builds have no libuv.
            use_libuv=os.environ.get("USE_LIBUV", "1") == "1",
        )
        port = store.port
    os.environ |= {
        "MASTER_ADDR": arguments.address,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    context = multiprocessing.spawn(
        _be_rank, (places, arguments.spec), nprocs=len(places), join=False
    )
    try:
        while not context.join():
            continue
    except multiprocessing.ProcessExitedException:
        # It tells of the first one that it noticed, which need not be the first to go.
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
