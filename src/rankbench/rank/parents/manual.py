"""Starts the ranks of a host without a launcher: one command for each rank.

It does not import torch, because that would take longer than everything else it does.
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

from rankbench.environ import Place, launch_id, read_node
from rankbench.rank.joining.host_names import check_name

LOOPBACK = "127.0.0.1"
GRACE = 5.0  # seconds between SIGTERM and SIGKILL


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m rankbench.rank.parents.manual")
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
            rank_argv(place, url, arguments.spec),
            env={**os.environ, **variables},
        )
        for place in places
    }
    failed = await_ranks(ranks)
    for rank, code in sorted(failed.items()):
        print(f"rank {rank} ended with exit code {code}")
    return 1 if failed else 0


def add_place(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for the number of ranks and hosts, and the place to meet."""
    parser.add_argument("--ranks", type=int, required=True, help="ranks on each host")
    parser.add_argument("--nodes", type=int, default=1, help="number of hosts")
    parser.add_argument("--address", default=LOOPBACK, help="name of the first host")
    parser.add_argument("--port", type=int, help="default: a free port of this host")


def places_here(nodes: int, ranks: int) -> list[Place]:
    """The places of the ranks on this host.

    Args:
        nodes: number of hosts.
        ranks: number of ranks on each host.
    """
    node = read_node() if nodes > 1 else 0
    return [
        Place(
            rank=node * ranks + local_rank,
            size=nodes * ranks,
            local_rank=local_rank,
            local_size=ranks,
            node=node,
        )
        for local_rank in range(ranks)
    ]


def choose_rendezvous(
    method: str, folder: Path, address: str = LOOPBACK, port: int | None = None
) -> tuple[str, dict[str, str]]:
    """The URL at which ranks meet, and the environment variables that belong to it.

    Another process may take the port before rank 0 uses it. Then rank 0 reports that
    the port is in use, and the launch is retried.

    Args:
        method: ``env``, ``tcp`` or ``file``.
        folder: folder for the file of the method ``file``.
        address: name of the first host.
        port: port on the first host; None chooses a free port of this host.

    Raises:
        ValueError: the file exists; ranks would read data of an earlier launch.
        OSError: this host cannot resolve `address`.
    """
    if method == "file":
        launch = launch_id()
        file = folder.absolute() / f"rendezvous{'.' + launch if launch else ''}"
        # With several hosts, a rank on another host may just have created the file.
        if port is None and file.exists():
            raise ValueError(f"{file} is left from an earlier launch: remove it")
        return f"file://{file}", {}
    check_name(address)
    port = port or find_free_port()
    if method == "tcp":
        return f"tcp://{address}:{port}", {}
    return "env://", {"MASTER_ADDR": address, "MASTER_PORT": str(port)}


def rank_argv(place: Place, url: str, spec: Path) -> list[str]:
    """The command that starts one rank."""
    return [
        sys.executable,
        "-m",
        "rankbench.rank",
        f"--rank={place.rank}",
        f"--world-size={place.size}",
        f"--local-rank={place.local_rank}",
        f"--local-world-size={place.local_size}",
        f"--init-method={url}",
        str(spec),
    ]


def await_ranks(
    ranks: Mapping[int, subprocess.Popen[bytes]], *, grace: float = GRACE
) -> dict[int, int]:
    """Wait for all ranks; if one fails, end the others.

    Args:
        ranks: rank -> process. This process must not have other children.
        grace: seconds between SIGTERM and SIGKILL.

    Returns:
        Rank -> exit code of each failed rank, except ranks that this function ended.
    """
    codes = [process.poll() for process in ranks.values()]
    while None in codes and not any(codes):
        # Sleep until a child ends; WNOWAIT leaves its status for poll().
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
    """A port of the loopback interface that is free now."""
    with socket.create_server((LOOPBACK, 0)) as server:
        return int(server.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
