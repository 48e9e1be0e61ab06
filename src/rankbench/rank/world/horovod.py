"""Horovod's runtime: over gloo, MPI, NCCL or oneCCL, whichever it was built with."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import torch

from rankbench.environ import Place
from rankbench.launch_spec import LOOPBACK
from rankbench.rank.world.places import announce

# Backend -> Horovod's controller, which agrees on the next operation, and the library
# for CPU tensors. GPU tensors use NCCL if Horovod was built with it.
_CONTROLLER = {"gloo": "gloo", "mpi": "mpi", "nccl": "gloo", "ccl": "mpi"}
_OPERATIONS = {"gloo": "gloo", "mpi": "mpi", "nccl": "gloo", "ccl": "ccl"}


def join(backend: str, place: Place, init_method: str, device: torch.device) -> None:
    controller = _CONTROLLER[backend]
    core = str(max(os.sched_getaffinity(0)))
    os.environ |= {
        "HOROVOD_CONTROLLER": controller,
        "HOROVOD_CPU_OPERATIONS": _OPERATIONS[backend],
        # A core for the oneCCL thread of each rank on the host; oneCCL reads only the
        # entry of this rank.
        "CCL_WORKER_AFFINITY": ",".join([core] * place.local_size),
    }
    if controller == "gloo" and "HOROVOD_GLOO_RENDEZVOUS_ADDR" not in os.environ:
        os.environ |= _meet(place, init_method)
    horovod = _horovod()
    if device.type == "cuda" and backend != "nccl" and horovod.nccl_built():
        raise RuntimeError(
            f"this Horovod was built with NCCL and uses it for tensors on a GPU, not "
            f"{backend}: choose backend: nccl, or build Horovod without NCCL"
        )
    horovod.init()


def barrier() -> None:
    horovod = _horovod()
    if horovod.is_initialized():
        horovod.barrier()


def operation(
    name: str, size: int, device: torch.device, group: None = None
) -> Callable[[], None]:
    horovod = _horovod()
    whole = torch.zeros(size // 4, device=device)
    # One name for each size, because Horovod remembers the shape of a name.
    calls: dict[str, Callable[[], None]] = {
        "all_reduce": lambda: horovod.allreduce_(
            whole, op=horovod.Sum, name=f"rankbench.{size}"
        ),
    }
    return calls[name]


def largest(value: float) -> float:
    horovod = _horovod()
    every = horovod.allgather(torch.tensor([value]), name="rankbench.largest")
    return float(every.max())


def leave() -> None:
    horovod = _horovod()
    if horovod.is_initialized():
        horovod.barrier()
        horovod.shutdown()


def _horovod() -> Any:
    # Imported here, so that tests can import this file without Horovod.
    import horovod.torch

    return horovod.torch


def _meet(place: Place, init_method: str) -> dict[str, str]:
    """Make the rendezvous that horovodrun would make: rank 0 runs its server.

    Returns:
        The variables that Horovod reads.
    """
    address, port = announce(place, init_method, lambda host: _serve(place))
    interface = os.environ.get("GLOO_SOCKET_IFNAME")
    return {
        **({"HOROVOD_GLOO_IFACE": interface} if interface else {}),
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
        "HOROVOD_HOSTNAME": _host(place.node),
        "HOROVOD_RANK": str(place.rank),
        "HOROVOD_SIZE": str(place.size),
        "HOROVOD_LOCAL_RANK": str(place.local_rank),
        "HOROVOD_LOCAL_SIZE": str(place.local_size),
        "HOROVOD_CROSS_RANK": str(place.node),
        "HOROVOD_CROSS_SIZE": str(place.size // place.local_size),
    }


def _serve(place: Place) -> int:
    """Start the rendezvous server in a thread; return its port."""
    from horovod.runner.common.util.hosts import SlotInfo
    from horovod.runner.http.http_server import (
        RendezvousHandler,
        RendezvousHTTPServer,
    )

    # All interfaces if there are other hosts, else loopback only.
    at = "" if place.size > place.local_size else LOOPBACK
    server = RendezvousHTTPServer((at, 0), RendezvousHandler, 0)
    server.init(
        [
            SlotInfo(
                hostname=_host(rank // place.local_size),
                rank=rank,
                local_rank=rank % place.local_size,
                cross_rank=rank // place.local_size,
                size=place.size,
                local_size=place.local_size,
                cross_size=place.size // place.local_size,
            )
            for rank in range(place.size)
        ]
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return int(server.server_address[1])


def _host(node: int) -> str:
    """A name by which Horovod tells hosts apart; it is never resolved."""
    return f"host{node}"
