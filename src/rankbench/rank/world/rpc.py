"""The runtime of torch.distributed.rpc: ranks call functions on each other."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributed import rpc

from rankbench.environ import Place

# Longer than any launch, because the supervisor enforces the time limit. 0 would mean
# "no limit" for calls, but "do not wait" when the ranks join.
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
    """The name of a rank in RPC calls."""
    return f"rank{rank}"


def barrier() -> None:
    if rpc.api._is_current_rpc_agent_set():
        # A private function: the public `shutdown` waits as well, but ends RPC.
        rpc.api._all_gather(None)


def operation(
    name: str, size: int, device: torch.device, group: None = None
) -> Callable[[], None]:
    me = rpc.get_worker_info().id
    ranks = len(rpc.api._get_current_rpc_agent().get_worker_infos())
    # A CPU tensor, because TensorPipe sends GPU tensors only with a device map.
    whole = torch.zeros(size // 4)

    def pass_on() -> None:
        """Send to the next rank, and wait for its answer."""
        rpc.rpc_sync(name_of((me + 1) % ranks), _take, (whole,))

    return {"send_recv": pass_on}[name]


def largest(value: float) -> float:
    return float(max(rpc.api._all_gather(value).values()))


def _take(tensor: Tensor) -> None:
    """Receive the tensor, and do nothing with it."""


def leave() -> None:
    if rpc.api._is_current_rpc_agent_set():
        rpc.shutdown()
