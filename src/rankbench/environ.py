"""The only module that reads what schedulers and launchers put into the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process stands among the ranks of its launch."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    node: int

    def export(self) -> dict[str, str]:
        """The variables that torch's `env://` and its launchers use."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_size),
            "GROUP_RANK": str(self.node),
        }


class _Names(NamedTuple):
    """How a launcher names the place of a process."""

    rank: str
    size: str
    local_rank: str
    local_size: str
    node: str | None


_TORCHRUN = _Names("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
# The first that is there counts: horovodrun and DeepSpeed may themselves run under MPI.
_LAUNCHERS = (
    _Names(
        "HOROVOD_RANK",
        "HOROVOD_SIZE",
        "HOROVOD_LOCAL_RANK",
        "HOROVOD_LOCAL_SIZE",
        "HOROVOD_CROSS_RANK",
    ),
    _Names("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK"),  # DeepSpeed
    _TORCHRUN,
    _Names(
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        None,
    ),
    _Names("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", None),  # Hydra
)


def read_place(environ: Mapping[str, str] = os.environ) -> Place:
    """The place that the launcher gave to this process.

    Raises:
        ValueError: the launcher set none of the variables that are known.
    """
    given = (n for n in _LAUNCHERS if n.rank in environ and n.local_size in environ)
    names = next(given, _TORCHRUN)
    try:
        rank, local_size = int(environ[names.rank]), int(environ[names.local_size])
        return Place(
            rank=rank,
            size=int(environ[names.size]),
            local_rank=int(environ[names.local_rank]),
            local_size=local_size,
            # MPI does not number hosts; its ranks fill one after the other.
            node=int(environ.get(names.node, 0)) if names.node else rank // local_size,
        )
    except KeyError as error:
        raise ValueError(f"the launcher did not set {error}") from error


def job_id(environ: Mapping[str, str] = os.environ) -> str | None:
    """Id of the Slurm job, or None outside one."""
    return environ.get("SLURM_JOB_ID")
