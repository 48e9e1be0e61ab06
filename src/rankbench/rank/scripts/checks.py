"""Whether a script trains as its cell says, looked at after its first step."""

from __future__ import annotations

import sys

import torch
from torch import distributed

from rankbench.cell import Cell
from rankbench.rank.scripts.running import ScriptError

# Modules by which ranks may join without torch.distributed.
_OTHER_RUNTIMES = ("horovod.torch", "mpi4py.MPI")


def find_device(kind: str) -> torch.device:
    """The device on which the script trains on this rank.

    Args:
        kind: ``cpu`` or ``cuda``, as the cell says.

    Raises:
        ScriptError: the script has not used a GPU.
    """
    if kind == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_initialized():
        raise ScriptError("the script uses no GPU, but this cell is on device: cuda")
    return torch.device("cuda", torch.cuda.current_device())


def check_ranks(cell: Cell, ranks: int, *, is_marked: bool) -> None:
    """Check that the ranks of a script train one model over the cell's backend.

    Args:
        cell: what is measured.
        ranks: number of ranks of the launch, more than one.
        is_marked: whether the script marks its steps, so that it may need no torch.

    Raises:
        ScriptError: they do not.
    """
    if distributed.is_initialized():
        joined = distributed.get_world_size()
        if joined != ranks:
            raise ScriptError(f"the script joins {joined} of {ranks} ranks")
        _check_backend(cell)
    elif not is_marked and not any(name in sys.modules for name in _OTHER_RUNTIMES):
        raise ScriptError(
            f"the script trains {ranks} models, one on each rank: it does not join its "
            "ranks by torch.distributed, Horovod or MPI"
        )


def _check_backend(cell: Cell) -> None:
    config = distributed.distributed_c10d.get_backend_config()
    # cpu:gloo,cuda:nccl
    backends = dict(one.split(":") for one in config.split(",") if ":" in one)
    used = backends.get(cell.device)
    planned = cell.backend
    if planned in ("gloo", "mpi", "nccl") and used not in (None, planned):
        raise ScriptError(
            f"the script joins its ranks over {used}, but this cell measures {planned}:"
            " give it {backend} in `args`, or change `backend`"
        )
