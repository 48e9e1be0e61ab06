"""The command of a launch: a step of Slurm, in it an image, in it the launcher.

Pure functions: commands can be read and tested without Slurm, Apptainer or launcher.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rankbench.launch.hosts.base import Hosts, Step
from rankbench.launch.hosts.ssh_agent import CONTAINER_PROGRAMS
from rankbench.launch.launchers import find_launcher, is_by_ssh
from rankbench.launch.process.environment import SOURCE, build_environment
from rankbench.launch_spec import LaunchSpec

# Variables of Apptainer itself. Its switches, such as APPTAINER_CONTAINALL, would
# change what ranks see. Only paths of the site pass.
_FOR_APPTAINER = {
    *("PATH", "HOME", "USER", "LANG", "TMPDIR", "XDG_RUNTIME_DIR"),
    *(
        f"{program}_{name}"
        for program in ("APPTAINER", "SINGULARITY")
        for name in ("BIND", "BINDPATH", "MOUNT", "CACHEDIR", "CONFIGDIR", "TMPDIR")
    ),
}

HOME = "/opt/rankbench/home"  # of ranks in an image


@dataclass(frozen=True, slots=True)
class LaunchCommand:
    """What is run.

    Attributes:
        argv: the whole command.
        env: variables of the launcher and its ranks.
        outer: those of the process that is started: srun and Apptainer need more.
    """

    argv: list[str]
    env: dict[str, str]
    outer: dict[str, str]


def build_command(
    spec: LaunchSpec, hosts: Hosts, *, inherited: Mapping[str, str] = os.environ
) -> LaunchCommand:
    """What is run for a launch.

    Args:
        spec: the launch.
        hosts: where it runs.
        inherited: the environment to pass the known variables on from.
    """
    launcher = find_launcher(spec.cell.launcher)
    env = build_environment(spec, inherited)
    if hasattr(launcher, "build_variables"):
        env |= launcher.build_variables(spec)
    argv, outer = launcher.build_argv(spec), env
    if spec.image is not None:
        argv = exec_argv(spec, argv)
        outer = environment_for(env, inherited)
    per_rank = getattr(launcher, "NEEDS", {}).get("per") == "rank"
    how = Step(
        logs=spec.work,
        tasks_per_host=spec.shape.ranks_per_node if per_rank else 1,
        mpi=per_rank and spec.cell.backend == "mpi",
        shares_cores=spec.shares_cores,
        first_host_only=spec.goes_by_ssh and is_by_ssh(launcher),
    )
    return LaunchCommand(
        hosts.step(argv, how), env, {**outer, **hosts.variables(inherited)}
    )


def exec_argv(spec: LaunchSpec, argv: Sequence[str]) -> list[str]:
    """The command that runs `argv` inside the image of a launch.

    `/dev` is the host's, and with it `/dev/shm`: the memory that ranks share is as
    large as there. `/tmp` is the host's, too.
    """
    assert spec.image is not None, "it has an image"
    readable = [
        SOURCE,
        *([spec.data_dir] if spec.data_dir.exists() else []),
        *spec.binds,
        *sorted({file.parent for file in spec.own.values()}),
    ]
    writable = [spec.directory, *([spec.scratch] if spec.scratch else [])]
    return [
        next(filter(shutil.which, CONTAINER_PROGRAMS), CONTAINER_PROGRAMS[0]),
        "--quiet",  # Apptainer warns about missing programs that it does not need.
        "exec",
        # Packages and settings in a user's home must not affect the measurement.
        f"--home={spec.home}:{HOME}",
        "--no-mount=cwd",
        *(["--nv"] if spec.cell.device == "cuda" else []),
        *(f"--bind={path}:{path}:ro" for path in readable),
        *(f"--bind={path}:{path}" for path in writable),
        f"--pwd={HOME}",
        str(spec.image["file"]),
        *argv,
    ]


def check_binds(paths: Sequence[str]) -> None:
    """Check that this host has the paths that an image shall see.

    Raises:
        ValueError: it lacks one; the message names host, path and remedy.
    """
    for path in paths:
        if not os.path.exists(path):
            raise ValueError(
                f"the host {socket.gethostname()} has no {path}: correct binds in "
                "site.yaml"
            )


def environment_for(
    inside: Mapping[str, str], inherited: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Variables for the command of `exec_argv`: all of them come in.

    No `--cleanenv`: this environment is made from nothing, and what a launcher outside
    sets for each rank must reach it.

    Args:
        inside: what the ranks shall have.
        inherited: the environment to take from what Apptainer itself needs.
    """
    own = {key: value for key, value in inherited.items() if key in _FOR_APPTAINER}
    return {**own, **inside}
