"""Run a command inside an image, with its binds and variables and little else.

Pure functions to text, so that a command can be read, repeated by hand and tested.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

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
