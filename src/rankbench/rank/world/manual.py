"""Starts the ranks of a host without a launcher: one command for each rank.

It does not import torch, because that would take longer than everything else it does.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rankbench.rank.world.places import (
    add_place,
    choose_rendezvous,
    places_here,
)

GRACE = 5.0  # seconds between SIGTERM and SIGKILL


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m rankbench.rank.world.manual")
    add_place(parser)
    parser.add_argument("--init-method", choices=["env", "tcp", "file"], required=True)
    parser.add_argument("spec", type=Path)
    arguments = parser.parse_args()
    url, variables = choose_rendezvous(
        arguments.init_method,
        arguments.spec.parent,
        arguments.address,
        arguments.port,
    )
    print(f"rendezvous: {url}", *(f"{k}={v}" for k, v in variables.items()), flush=True)
    places = places_here(arguments.nodes, arguments.ranks)
    ranks = {
        place.rank: subprocess.Popen(
            rank_argv(url, arguments.spec),
            env={**os.environ, **variables, **place.export()},
        )
        for place in places
    }
    failed = await_ranks(ranks)
    for rank, code in sorted(failed.items()):
        print(f"rank {rank} ended with exit code {code}")
    return 1 if failed else 0


def rank_argv(url: str, spec: Path) -> list[str]:
    """The command of a rank, whose environment says which one it is."""
    return [sys.executable, "-m", "rankbench.rank", f"--init-method={url}", str(spec)]


def await_ranks(
    ranks: Mapping[int, subprocess.Popen[bytes]], *, grace: float = GRACE
) -> dict[int, int]:
    """Wait for all ranks; if one fails, end the others.

    Args:
        ranks: rank -> process. This process must not have other children.
        grace: seconds between SIGTERM and SIGKILL.

    Returns:
        Rank -> exit code of each rank that has failed before.
    """
    codes = [process.poll() for process in ranks.values()]
    while None in codes and not any(codes):
        # Sleep until a child ends; WNOWAIT leaves its status for poll().
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        codes = [process.poll() for process in ranks.values()]
    end_all([p for p in ranks.values() if p.returncode is None], grace)
    return {rank: code for rank, code in zip(ranks, codes, strict=True) if code}


def end_all(
    processes: Sequence[subprocess.Popen[bytes]],
    grace: float,
    send: Callable[[subprocess.Popen[bytes], int], None] = subprocess.Popen.send_signal,
) -> None:
    """End processes by SIGTERM, and those that remain after `grace` s by SIGKILL.

    Args:
        send: sends a signal to a process, and to others that end with it.
    """
    for process in processes:
        send(process, signal.SIGTERM)
    deadline = time.monotonic() + grace
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            send(process, signal.SIGKILL)
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
