"""Runs Apptainer through spython."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from spython.main import get_client
from spython.utils import stream_command

from rankbench.launch.hosts import base
from rankbench.launch.hosts.ssh_agent import CONTAINER_PROGRAMS

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
    # Client.build reads only one of the two pipes, and hangs when the other is full.
    command = _client()._init_command(["build", *options, str(image), str(definition)])
    lines: Iterator[str] = stream_command(command, output_type="both")
    return lines


def pull(image: Path, source: str) -> Iterator[str]:
    """Pull an image; yield lines as `build` does."""
    lines: Iterator[str]
    _, lines = _client().pull(source, name=str(image), force=True, stream=True)
    return lines


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
    lines: Iterator[str] = _client().execute(
        str(image),
        list(command),
        bind=list(binds),
        options=list(options),
        stream=True,
        stream_type=stream,
    )
    return lines


def why_not(*words: str) -> str:
    """Run a command of Apptainer; empty if it succeeds, else what it has said last.

    A key that is protected by a passphrase would make Apptainer wait for it.
    """
    quiet = {**os.environ, "NO_COLOR": "1"}
    return base.why_not([find_program(), *words], _SECONDS, env=quiet)


@cache
def _client() -> Any:
    """Return spython's client, patched: it calls Apptainer by its old name only."""
    client = get_client(quiet=False)
    begin = client._init_command

    def begin_command(*arguments: Any, **options: Any) -> list[str]:
        return [find_program(), *begin(*arguments, **options)[1:]]

    client._init_command = begin_command
    return client
