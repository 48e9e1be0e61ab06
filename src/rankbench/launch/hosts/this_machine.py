"""Launches on this machine, without a scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from rankbench.launch.hosts.base import Hosts, Step


class ThisMachine(Hosts):
    """This machine, on which a command simply runs."""

    names = ("localhost",)
    start_within = 0.0
    share_files = False

    @classmethod
    def find(cls, nodes: int) -> Self:
        return cls()

    def step(self, argv: Sequence[str], how: Step) -> list[str]:
        return list(argv)
