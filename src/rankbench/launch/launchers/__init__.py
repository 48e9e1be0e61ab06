"""What starts the processes of a launch: one file per launcher, chosen by name."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from rankbench.cell import Shape


@dataclass(frozen=True, slots=True)
class Start:
    """What a launcher must know to start the ranks of one launch.

    Attributes:
        python: the interpreter of the ranks.
        shape: how many there are.
        init_method: how they find each other: ``env``, or what the launcher can.
        spec: the file that tells each rank what to do.
        backend: what carries their bytes.
        shares_cores: whether several ranks take turns on a core.
    """

    python: str
    shape: Shape
    init_method: str
    spec: Path
    backend: str
    shares_cores: bool = False

    @property
    def slots(self) -> dict[str, int]:
        """Ranks of each host."""
        return {"localhost": self.shape.ranks_per_node}

    @property
    def hostfile(self) -> Path:
        """Where a launcher that reads such a file finds it."""
        return self.spec.with_name("hostfile")

    @property
    def rank_argv(self) -> list[str]:
        """The command of one rank."""
        return [self.python, "-m", "rankbench.rank", str(self.spec)]


class Launcher(Protocol):
    """Each launcher is a module with these two functions, or three.

    ``build_variables(start)`` is left out where it would say nothing: variables of the
    environment that the launcher wants.
    """

    def build_argv(self, start: Start) -> list[str]:
        """The command that starts every rank and ends when they have ended."""

    def read_exits(self, log: str) -> Mapping[int, int]:
        """Exit codes by local rank, as far as the launcher's own output tells them."""


def variables_of(launcher: Launcher, start: Start) -> dict[str, str]:
    """What the launcher wants in its environment."""
    build = getattr(launcher, "build_variables", None)
    return build(start) if build else {}


def find_launcher(name: str) -> Launcher:
    """The launcher of that name; the plan has checked that there is one."""
    module = importlib.import_module(f"{__name__}.{name}")
    return cast(Launcher, module)
