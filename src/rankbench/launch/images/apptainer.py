"""Runs Apptainer through spython, which streams what a command prints."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from spython.utils import stream_command

from rankbench.launch.hosts import base
from rankbench.launch.hosts.ssh_probe import CONTAINER_PROGRAMS

_SECONDS = 600

# Programs see only the contents of the image, and no home folder, packages or variables
# of the user.
APART = (
    *("--cleanenv", "--no-home", "--no-mount", "cwd", "--pwd", "/"),
    *("--env", "PYTHONNOUSERSITE=1"),
)


def find_program() -> str:
    """Return the name of this machine's container program.

    Raises:
        ValueError: no container program is installed.
    """
    for name in CONTAINER_PROGRAMS:
        if shutil.which(name):
            return name
    raise ValueError(
        "Apptainer is not installed, or not on PATH: ask your operators for its module "
        "(`module load apptainer`) or install it; without it, set `software: native` "
        "in site.yaml"
    )


def build(image: Path, definition: Path, options: Sequence[str]) -> Iterator[str]:
    """Build an image; yield the output of Apptainer, line by line.

    Raises:
        subprocess.CalledProcessError: after the last line, if the build failed.
    """
    return _stream("build", *options, str(image), str(definition))


def pull(image: Path, source: str) -> Iterator[str]:
    """Pull an image; yield lines as `build` does."""
    return _stream("pull", "--force", str(image), source)


def execute(
    image: Path,
    command: Sequence[str],
    *,
    binds: Sequence[str] = (),
    options: Sequence[str] = APART,
    stream: str = "both",
) -> Iterator[str]:
    """Run a command in an image; yield lines as `build` does.

    Args:
        binds: ``OUTSIDE:INSIDE:ro``.
        stream: output to yield: ``stdout`` (only for short outputs), or ``both``.
    """
    bound = [word for bind in binds for word in ("--bind", bind)]
    return _stream("exec", *bound, *options, str(image), *command, stream=stream)


def why_not(*words: str) -> str:
    """Run a command of Apptainer; empty if it succeeds, else what it has said last.

    A key that is protected by a passphrase would make Apptainer wait for it.
    """
    quiet = {**os.environ, "NO_COLOR": "1"}
    return base.why_not([find_program(), *words], _SECONDS, env=quiet)


def _stream(*words: str, stream: str = "both") -> Iterator[str]:
    # spython's client calls Apptainer by its old name only, and its `build` reads one
    # of two pipes, and hangs when the other is full.
    lines: Iterator[str] = stream_command([find_program(), *words], output_type=stream)
    return lines
