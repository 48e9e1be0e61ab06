"""The parent of ranks that are started as by hand: a command each, no launcher.

It imports no torch: that would take longer than all else it does.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

LOOPBACK = "127.0.0.1"
GRACE = 5.0  # seconds between SIGTERM and SIGKILL


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m rankbench.rank.manual")
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--init-method", choices=["env", "tcp", "file"], required=True)
    parser.add_argument("spec", type=Path)
    arguments = parser.parse_args()
    url, variables = choose_rendezvous(arguments.init_method, arguments.spec.parent)
    print(f"rendezvous: {url}", *(f"{k}={v}" for k, v in variables.items()), flush=True)
    ranks = {
        rank: subprocess.Popen(
            rank_argv(rank, arguments.ranks, url, arguments.spec),
            env={**os.environ, **variables},
        )
        for rank in range(arguments.ranks)
    }
    failed = await_ranks(ranks)
    for rank, code in sorted(failed.items()):
        print(f"rank {rank} ended with exit code {code}")
    return 1 if failed else 0


def choose_rendezvous(method: str, folder: Path) -> tuple[str, dict[str, str]]:
    """The address at which ranks meet, and the variables that belong to it.

    Between the choice of a port and its use by rank 0 another process may take it;
    then rank 0 says so, and the launch is tried again.

    Args:
        method: ``env``, ``tcp`` or ``file``.
        folder: where the file of the method ``file`` shall be.

    Raises:
        ValueError: the file is there already; ranks would meet what is left of others.
    """
    if method == "file":
        file = folder.absolute() / "rendezvous"
        if file.exists():
            raise ValueError(f"{file} is left from an earlier launch: remove it")
        return f"file://{file}", {}
    port = find_free_port()
    if method == "tcp":
        return f"tcp://{LOOPBACK}:{port}", {}
    return "env://", {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(port)}


def rank_argv(rank: int, ranks: int, url: str, spec: Path) -> list[str]:
    """The command of one rank; all are on this host."""
    return [
        sys.executable,
        "-m",
        "rankbench.rank",
        f"--rank={rank}",
        f"--world-size={ranks}",
        f"--local-rank={rank}",
        f"--init-method={url}",
        str(spec),
    ]


def await_ranks(
    ranks: Mapping[int, subprocess.Popen[bytes]], *, grace: float = GRACE
) -> dict[int, int]:
    """Wait for all; when one fails, end the others.

    Args:
        ranks: the processes; this one has no other children.
        grace: seconds between SIGTERM and SIGKILL.

    Returns:
        Exit codes of those that failed, without those that were ended for it.
    """
    codes = [process.poll() for process in ranks.values()]
    while None in codes and not any(codes):
        # Sleeps until one of them ends, and leaves its status to poll().
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        codes = [process.poll() for process in ranks.values()]
    ended_by_us: dict[int, int] = {}
    running = {rank: p for rank, p in ranks.items() if p.returncode is None}
    for rank, process in running.items():
        process.terminate()
        ended_by_us[rank] = -signal.SIGTERM
    deadline = time.monotonic() + grace
    for rank, process in running.items():
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            ended_by_us[rank] = -signal.SIGKILL
    return {
        rank: process.returncode
        for rank, process in ranks.items()
        if process.returncode and process.returncode != ended_by_us.get(rank)
    }


def find_free_port() -> int:
    """A port of the loopback interface that nobody listens on at the moment."""
    with socket.create_server((LOOPBACK, 0)) as server:
        return int(server.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
