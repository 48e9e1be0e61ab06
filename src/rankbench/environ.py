"""The only module that reads what schedulers and launchers put into the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass


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


def read_place(environ: Mapping[str, str] = os.environ) -> Place:
    """The place that the launcher gave to this process.

    Raises:
        ValueError: the launcher set none of the variables that are known.
    """
    try:
        return Place(
            rank=int(environ["RANK"]),
            size=int(environ["WORLD_SIZE"]),
            local_rank=int(environ["LOCAL_RANK"]),
            local_size=int(environ["LOCAL_WORLD_SIZE"]),
            node=int(environ.get("GROUP_RANK", "0")),
        )
    except KeyError as error:
        raise ValueError(f"the launcher did not set {error}") from error


def job_id(environ: Mapping[str, str] = os.environ) -> str | None:
    """Id of the Slurm job, or None outside one."""
    return environ.get("SLURM_JOB_ID")
