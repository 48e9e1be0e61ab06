"""Launchers start the processes of a launch. Each is a file, chosen by its name."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from rankbench.cell import Shape

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Start:
    """Everything that a launcher needs to start the ranks of one launch.

    Attributes:
        python: the interpreter of the ranks.
        shape: how many there are.
        init_method: how they find each other: ``env``, or what the launcher can.
        spec: the file that tells each rank what to do.
        backend: what carries their bytes.
        shares_cores: whether several ranks take turns on a core.
        hosts: where they run; the first has rank 0.
        address: where they meet.
        port: the port there; 0 is one that is free, where all ranks are on one host.
        interface: the network interface between hosts; None leaves it to libraries.
        has_ssh: whether ranks' hosts reach each other by ssh.
    """

    python: str
    shape: Shape
    init_method: str
    spec: Path
    backend: str
    shares_cores: bool = False
    hosts: tuple[str, ...] = ("localhost",)
    address: str = LOOPBACK
    port: int = 0
    interface: str | None = None
    has_ssh: bool = False

    @property
    def is_spread(self) -> bool:
        """Whether there is more than one host."""
        return self.shape.nodes > 1

    @property
    def slots(self) -> dict[str, int]:
        """Ranks of each host, by the name that a launcher knows it by."""
        # localhost serves, because a host may know itself by another name than Slurm
        # does.
        hosts = self.hosts if self.is_spread else ("localhost",)
        return dict.fromkeys(hosts, self.shape.ranks_per_node)

    @property
    def hostfile(self) -> Path:
        """The path of the hostfile."""
        return self.spec.with_name("hostfile")

    @property
    def secret(self) -> Path:
        """The file with the secret of a launch, which only its owner can read."""
        return self.spec.with_name("secret")

    @property
    def rank_argv(self) -> list[str]:
        """The command of one rank."""
        return [self.python, "-m", "rankbench.rank", str(self.spec)]

    @property
    def meeting_argv(self) -> list[str]:
        """The beginning of the command of a launcher that has no rendezvous."""
        place = [f"--address={self.address}", f"--port={self.port}"]
        return [
            self.python,
            "-m",
            "rankbench.rank.world.meeting",
            *(place if self.is_spread else []),
        ]


class Launcher(Protocol):
    """Each launcher is a module with these two functions, or three.

    ``build_variables(start)`` returns environment variables of the launcher and is
    optional.

    The command runs once on each host at the same time. With ``NEEDS["per"] == "rank"``
    it runs once for each rank. With ``"array"`` each host is a task of a job array, and
    runs it once. With ``NEEDS["ssh"]`` it runs on the first host only, if that reaches
    the others by ssh.
    """

    def build_argv(self, start: Start) -> list[str]:
        """The command that starts ranks and ends when they have ended."""

    def read_exits(self, log: str) -> Mapping[int, int]:
        """Exit codes by rank, as far as the launcher prints them."""


def variables_of(launcher: Launcher, start: Start) -> dict[str, str]:
    """Environment variables of the launcher."""
    build = getattr(launcher, "build_variables", None)
    return build(start) if build else {}


def is_per_rank(launcher: Launcher) -> bool:
    """Whether its command is that of a single rank."""
    return getattr(launcher, "NEEDS", {}).get("per") == "rank"


def is_by_ssh(launcher: Launcher) -> bool:
    """Whether its command runs on the first host, and reaches the others by ssh."""
    return bool(getattr(launcher, "NEEDS", {}).get("ssh"))


def is_array(launcher: Launcher) -> bool:
    """Whether each host is a task of a job array, which is yet to be submitted."""
    return getattr(launcher, "NEEDS", {}).get("per") == "array"


def find_launcher(name: str) -> Launcher:
    """The launcher of that name; the plan has checked that there is one."""
    module = importlib.import_module(f"{__name__}.{name}")
    return cast(Launcher, module)
