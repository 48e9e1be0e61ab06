"""torch.distributed.rpc over TensorPipe: ranks call functions on each other."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributed import rpc

from rankbench.environ import Place

# What limits a launch is its supervisor. (0 would be no limit on calls, but none of the
# waiting that the meeting itself needs.)
ENDLESS_S = 7 * 24 * 3600.0


def join(backend: str, place: Place, init_method: str, device: torch.device) -> None:
    rpc.init_rpc(
        name_of(place.rank),
        backend=rpc.BackendType[backend.upper()],
        rank=place.rank,
        world_size=place.size,
        rpc_backend_options=rpc.TensorPipeRpcBackendOptions(
            init_method=init_method, rpc_timeout=ENDLESS_S
        ),
    )


def name_of(rank: int) -> str:
    """What the other ranks call it by."""
    return f"rank{rank}"


def barrier() -> None:
    if rpc.api._is_current_rpc_agent_set():
        # The public `shutdown` waits in the same way, but ends everything.
        rpc.api._all_gather(None)


def operation(name: str, size: int, device: torch.device) -> Callable[[], None]:
    me = rpc.get_worker_info().id
    ranks = len(rpc.api._get_current_rpc_agent().get_worker_infos())
    # TensorPipe carries tensors of the CPU unless told which devices are whose.
    whole = torch.zeros(size // 4)

    def pass_on() -> None:
        """To the next rank, with its answer that it has come."""
        rpc.rpc_sync(name_of((me + 1) % ranks), _take, (whole,))

    calls: dict[str, Callable[[], None]] = {"send_recv": pass_on}
    return calls[name]


def largest(value: float) -> float:
    return float(max(rpc.api._all_gather(value).values()))


def _take(tensor: Tensor) -> None:
    """What was sent has come."""


def leave() -> None:
    if rpc.api._is_current_rpc_agent_set():
        rpc.shutdown()
