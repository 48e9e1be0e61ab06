"""Launchers start the processes of a launch. Each is a file, chosen by its name."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Protocol, cast

from rankbench.launch_spec import LaunchSpec


class Launcher(Protocol):
    """Each launcher is a module with these two functions, or three.

    ``build_variables(spec)`` returns environment variables of the launcher and is
    optional.

    The command runs once on each host at the same time. With ``NEEDS["per"] == "rank"``
    it runs once for each rank. With ``"array"`` each host is a task of a job array, and
    runs it once.
    """

    def build_argv(self, spec: LaunchSpec) -> list[str]:
        """The command that starts ranks and ends when they have ended."""

    def read_exits(self, log: str) -> Mapping[int, int]:
        """Exit codes by rank, as far as the launcher prints them."""


def is_array(launcher: Launcher) -> bool:
    """Whether each host is a task of a job array, which is yet to be submitted."""
    return getattr(launcher, "NEEDS", {}).get("per") == "array"


def find_launcher(name: str) -> Launcher:
    """The launcher of that name; the plan has checked that there is one."""
    module = importlib.import_module(f"{__name__}.{name}")
    return cast(Launcher, module)


def rank_argv(spec: LaunchSpec) -> list[str]:
    """The command of one rank."""
    return [spec.python, "-m", "rankbench.rank", str(spec.file)]


def meeting_argv(spec: LaunchSpec) -> list[str]:
    """The beginning of the command of a launcher that has no rendezvous."""
    place = [f"--address={spec.address}", f"--port={spec.port}"]
    module = "rankbench.rank.world.meeting"
    return [spec.python, "-m", module, *(place if spec.is_spread else [])]


def ssh_argv(spec: LaunchSpec, argv: list[str]) -> list[str]:
    """The command of a launcher that runs on the first host: mpirun, hydra, horovodrun.

    It gets a place to meet and, over several hosts, a stand-in for ssh, which few
    clusters allow, and which does not lead into an image.
    """
    if not spec.is_spread:
        return [*meeting_argv(spec), *argv]
    return [
        *meeting_argv(spec),
        spec.python,
        "-m",
        "rankbench.rank.world.remote",
        "--node={node}",
        f"--hosts={','.join(spec.hosts)}",
        f"--port={spec.port}",
        f"--secret={spec.secret}",
        *argv,
    ]


def names_of(spec: LaunchSpec) -> tuple[str, ...]:
    """The hosts, by the names that a launcher knows them by."""
    # localhost serves, because a host may know itself by another name than Slurm does.
    return spec.hosts if spec.is_spread else ("localhost",)


def hostfile(spec: LaunchSpec) -> str:
    """A line for each host: what Open MPI and DeepSpeed read."""
    count = spec.shape.ranks_per_node
    return "".join(f"{host} slots={count}\n" for host in names_of(spec))


def host_list(spec: LaunchSpec) -> str:
    """All in one word: what `-H` of mpirun and of horovodrun takes."""
    return ",".join(f"{host}:{spec.shape.ranks_per_node}" for host in names_of(spec))
