"""Launches on this machine, without a scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rankbench.launch.hosts.base import Hosts


class ThisMachine(Hosts):
    """This machine, on which a command simply runs."""

    names = ("localhost",)
    start_within = 0.0
    share_files = False

    def step(
        self,
        argv: Sequence[str],
        *,
        logs: Path,
        tasks_per_host: int = 1,
        mpi: bool = False,
        shares_cores: bool = False,
    ) -> list[str]:
        return list(argv)
