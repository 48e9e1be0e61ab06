"""Which ranks belong to this host, and where they meet.

It does not import torch, because that would take longer than everything else it does.
"""

from __future__ import annotations

import argparse
import errno
import secrets
import socket
from collections.abc import Callable
from pathlib import Path

from rankbench.environ import Place, check_name, launch_id, read_node
from rankbench.launch_spec import LOOPBACK, choose_port


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
    here = range(node * ranks, (node + 1) * ranks)
    return [Place.of(rank, nodes * ranks, ranks) for rank in here]


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


def find_free_port(host: str = LOOPBACK) -> int:
    """A port that is free now at this address of this host.

    The kernel gives it to nobody else before it is used, and other processes hardly:
    containers number their processes alike, so it is drawn.
    """
    while True:
        port = choose_port(secrets.randbits(32), 0)
        try:
            with socket.create_server((host, port)):
                return port
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise


def announce(
    place: Place, init_method: str, serve: Callable[[str], int]
) -> tuple[str, str]:
    """Host and port of a server of rank 0, on all ranks, which call it together.

    Args:
        place: of this rank.
        init_method: URL at which the ranks meet.
        serve: called on rank 0, by its host; returns the port.
    """
    from torch import distributed

    store, _, _ = next(distributed.rendezvous(init_method, place.rank, place.size))
    if place.rank == 0:
        spread = place.size > place.local_size
        host = socket.gethostname() if spread else LOOPBACK
        store.set("server", f"{host} {serve(host)}")
    host, port = store.get("server").decode().split()
    if place.rank == 0:
        # The store ends with this handle. The others wait for no answer after they have
        # read the port, which the store could be too late to give.
        store.wait([f"met {rank}" for rank in range(1, place.size)])
    else:
        store.set(f"met {place.rank}", "")
    return host, port
