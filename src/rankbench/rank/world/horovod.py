"""Horovod's runtime: over gloo, MPI, NCCL or oneCCL, whichever it was built with."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
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
    given = {"op": horovod.Sum, "name": f"rankbench.{size}"}
    return {"all_reduce": partial(horovod.allreduce_, whole, **given)}[name]


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
    from horovod.runner.common.util.hosts import HostInfo, get_host_assignments

    # Horovod tells hosts apart by these names, and never resolves them.
    count = place.size // place.local_size
    hosts = [HostInfo(f"host{node}", place.local_size) for node in range(count)]
    slots = get_host_assignments(hosts, place.size)
    at = "" if count > 1 else LOOPBACK
    address, port = announce(place, init_method, lambda _: _serve(at, slots))
    interface = os.environ.get("GLOO_SOCKET_IFNAME")
    return {
        **({"HOROVOD_GLOO_IFACE": interface} if interface else {}),
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
        **{f"HOROVOD_{k.upper()}": str(v) for k, v in vars(slots[place.rank]).items()},
    }


def _serve(address: str, slots: Sequence[Any]) -> int:
    """Start the rendezvous server in a thread; return its port.

    Args:
        address: where it listens; empty for all interfaces.
        slots: the places of all ranks, as Horovod describes them.
    """
    from horovod.runner.http.http_server import (
        RendezvousHandler,
        RendezvousHTTPServer,
    )

    server = RendezvousHTTPServer((address, 0), RendezvousHandler, 0)
    server.init(slots)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return int(server.server_address[1])
