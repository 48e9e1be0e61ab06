"""The command of a launch: a step of Slurm, in it an image, in it the launcher.

Pure functions: commands can be read and tested without Slurm, Apptainer or launcher.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rankbench.launch.hosts.base import Step
from rankbench.launch.launchers import (
    LOOPBACK,
    Start,
    find_launcher,
    is_by_ssh,
    is_per_rank,
    variables_of,
)
from rankbench.launch.process.environment import (
    SOURCE,
    build_environment,
    library_variables,
)
from rankbench.launch.task import Task


@dataclass(frozen=True, slots=True)
class Command:
    """What is run.

    Attributes:
        argv: the whole command.
        env: variables of the launcher and its ranks.
        outer: those of the process that is started: srun and Apptainer need more.
    """

    argv: list[str]
    env: dict[str, str]
    outer: dict[str, str]


def make_start(task: Task, *, python: str = sys.executable) -> Start:
    """What the launcher is told."""
    hosts = task.hosts
    spread = task.shape.nodes > 1
    return Start(
        python=PYTHON if task.image else python,
        shape=task.shape,
        init_method=task.cell.init_method,
        spec=task.work / "launch.json",
        backend=task.cell.backend,
        shares_cores=_shares_cores(task),
        hosts=hosts.names,
        address=hosts.names[0] if hosts.names and spread else LOOPBACK,
        port=hosts.port(task.serial),
        interface=task.interface,
        # Within an image there is no ssh, and ssh does not lead into one.
        has_ssh=hosts.has_ssh and spread and not task.image,
    )


def build_command(
    task: Task, start: Start, *, inherited: Mapping[str, str] = os.environ
) -> Command:
    """What is run for a task.

    Args:
        task: the launch.
        start: from `make_start`.
        inherited: the environment to pass the known variables on from.
    """
    launcher = find_launcher(task.cell.launcher)
    env = build_environment(
        task.shape,
        threads=task.threads,
        backend=task.cell.backend,
        gpudirect=task.cell.gpudirect,
        backend_logs=task.backend_logs,
        in_image=task.image is not None,
        interface=task.interface,
        scratch=task.scratch,
        site=task.env,
        inherited=inherited,
    )
    env |= library_variables(task.cell) | variables_of(launcher, start)
    argv, outer = launcher.build_argv(start), env
    if task.image is not None:
        argv = _in_image(task, Path(task.image["file"]), argv)
        outer = environment_for(env, inherited)
    per_rank = is_per_rank(launcher)
    how = Step(
        logs=task.work,
        tasks_per_host=task.shape.ranks_per_node if per_rank else 1,
        mpi=per_rank and task.cell.backend == "mpi",
        shares_cores=_shares_cores(task),
        first_host_only=start.has_ssh and is_by_ssh(launcher),
    )
    argv = task.hosts.step(argv, how)
    return Command(argv, env, {**outer, **task.hosts.variables(inherited)})


def home_of(task: Task) -> Path:
    """The home inside an image."""
    return task.work / "home"


def _in_image(task: Task, image: Path, argv: list[str]) -> list[str]:
    return exec_argv(
        image,
        argv,
        readable=[
            SOURCE,
            *([task.data_dir] if task.data_dir.exists() else []),
            *task.binds,
            *sorted({file.parent for file in task.own.values()}),
        ],
        writable=[task.directory, *([task.scratch] if task.scratch else [])],
        home=home_of(task),
        gpus=task.cell.device == "cuda",
    )


def _shares_cores(task: Task) -> bool:
    return "oversubscribed" in task.marks


# Variables of Apptainer itself.
_FOR_APPTAINER = ("PATH", "HOME", "USER", "LANG", "TMPDIR", "XDG_RUNTIME_DIR")
_FOR_APPTAINER_PREFIXES = ("APPTAINER_", "SINGULARITY_")

HOME = "/opt/rankbench/home"
PYTHON = "python3"  # The interpreter of the image, found through its PATH.


def exec_argv(
    image: Path,
    argv: Sequence[str],
    *,
    readable: Sequence[Path],
    writable: Sequence[Path],
    home: Path,
    gpus: bool,
) -> list[str]:
    """The command that runs `argv` inside an image.

    Args:
        image: a SIF file, or an unpacked image (a folder).
        readable: folders of the host that are there under the same path, read-only.
        writable: the same, to write in.
        home: an empty folder that is the home inside: libraries keep caches there.
        gpus: bring in the driver of NVIDIA's GPUs.

    Returns:
        The argv. `/dev` is the host's, and with it `/dev/shm`: the memory that ranks
        share is as large as there. `/tmp` is the host's, too.
    """
    binds = [f"{path}:{path}:ro" for path in readable]
    binds += [f"{path}:{path}" for path in writable]
    return [
        "apptainer",
        "--quiet",  # Apptainer warns about missing programs that it does not need.
        "exec",
        # Packages and settings in a user's home must not affect the measurement.
        f"--home={home}:{HOME}",
        "--no-mount=cwd",
        *(["--nv"] if gpus else []),
        *(f"--bind={bind}" for bind in binds),
        f"--pwd={HOME}",
        str(image),
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
    own = {
        key: value
        for key, value in inherited.items()
        if key in _FOR_APPTAINER or key.startswith(_FOR_APPTAINER_PREFIXES)
    }
    return {**own, **inside}
