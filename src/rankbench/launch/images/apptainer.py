"""Runs Apptainer through spython, which streams what a command prints, and explains why
it fails, with a remedy.
"""

from __future__ import annotations

import os
import pwd
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from spython.utils import stream_command

from rankbench.launch.hosts import base

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
    if name := base.container_program():
        return name
    raise ValueError(
        "Apptainer is not installed, or not on PATH: ask your operators for its module "
        "(`module load apptainer`) or install it; without it, set `software: native` "
        "in site.yaml"
    )


def run(*words: str | Path, stream: str = "both", lines: int = 1) -> Iterator[str]:
    """Run a command of Apptainer; yield what it prints, line by line.

    Args:
        words: of the command.
        stream: output to yield: ``stdout`` (only for short outputs), or ``both``.
        lines: how many last ones explain a failure whose cause is not known.

    Raises:
        ValueError: after the last line, if the command failed; says why, and what to
            do.
    """
    # spython's client calls Apptainer by its old name only, and its `build` reads one
    # of two pipes, and hangs when the other is full.
    said: list[str] = []
    command = [find_program(), *map(str, words)]
    try:
        for line in stream_command(command, output_type=stream):
            said.append(line)
            yield line
    except subprocess.CalledProcessError:
        log = "".join(said)
        raise ValueError(diagnose(log) or last_words(log, lines)) from None


def run_inside(
    image: Path,
    command: Sequence[str],
    *,
    binds: Sequence[str] = (),
    options: Sequence[str] = (),
    stream: str = "both",
) -> Iterator[str]:
    """Run a command in an image; yield lines as `run` does.

    Args:
        image: the file of the image.
        command: what is run.
        binds: ``OUTSIDE:INSIDE:ro``.
        options: of Apptainer, beside `APART`.
        stream: see `run`.
    """
    bound = [word for bind in binds for word in ("--bind", bind)]
    return run("exec", *bound, *APART, *options, image, *command, stream=stream)


def why_not(*words: str) -> str:
    """Run a command of Apptainer; empty if it succeeds, else what it has said last.

    A key that is protected by a passphrase would make Apptainer wait for it.
    """
    quiet = {**os.environ, "NO_COLOR": "1"}
    return base.why_not([find_program(), *words], _SECONDS, env=quiet)


def check_runs(image: Path) -> None:
    """Start a container of the image that does nothing: 0.2 s.

    Raises:
        ValueError: it does not start; says why, and what to do.
    """
    try:
        list(run_inside(image, ["true"]))
    except ValueError as error:
        raise ValueError(f"{image} does not start here: {error}") from None


def diagnose(log: str) -> str | None:
    """Return the cause of a failure, from Apptainer's log; None if it is unknown."""
    there = "is not accessible for you" if os.path.exists("/dev/fuse") else "is missing"
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # in a container
        user = f"the user {os.getuid()}"
    facts = {"fuse": there, "user": user, "build": build_dir()}
    for pattern, cause in _CAUSES.values():
        if found := re.search(pattern, log):
            return cause.format(found=found[0], **facts)
    return None


def last_words(log: str, lines: int = 1) -> str:
    """Return the last lines of a log, without empty lines and colours."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", log)
    said = [line.rstrip() for line in plain.splitlines() if line.strip()]
    if lines > 1:
        return "\n  ".join(["its log ends:", *said[-lines:]])
    return said[-1] if said else "it printed nothing"


SPACE_REMEDY = (
    "make room, or use a larger disk: set `image_dir` in site.yaml (images) and "
    "APPTAINER_TMPDIR (files during a build)"
)


MIRROR_REMEDY = (
    "check the network, or set `debian_mirror` in site.yaml to a mirror that is "
    "reachable from here"
)


def build_dir() -> Path:
    """Return the folder in which Apptainer unpacks images during a build."""
    return Path(os.environ.get("APPTAINER_TMPDIR") or tempfile.gettempdir())


# The causes by name; tests/real_logs has a log of each. The first match in this order
# counts, because others may be its consequences.
_CAUSES = {
    "disk": (
        r"(?i:no space left on device|disk quota exceeded)",
        f"the disk is full: {SPACE_REMEDY}",
    ),
    "tmpdir": (
        r"failed to create build parent dir: .*",
        "{build} is missing: make the folder that APPTAINER_TMPDIR names, or unset it",
    ),
    "userns": (
        r"Failed to create user namespace.*|no user namespace available.*",
        "this machine gives users no user namespaces ({found}): have its operator "
        "raise them (`sysctl user.max_user_namespaces=15000`), or install Apptainer "
        "setuid (the package apptainer-suid)",
    ),
    "fuse": (
        r"fuse: device not found|failed to open /dev/fuse",
        "/dev/fuse {fuse}, and users cannot mount an image without it: have the "
        "machine's operator load the kernel module fuse (`modprobe fuse`) and allow "
        "/dev/fuse for users (`chmod 666 /dev/fuse`)",
    ),
    "subuid": (
        r"not listed in /etc/subuid|no mapping entry found in /etc/sub[ug]id",
        "{user} has no range of user ids in /etc/subuid and /etc/subgid, which "
        "building needs: have the machine's operator add one (`usermod --add-subuids "
        "200000-265535 --add-subgids 200000-265535 {user}`), or build on another "
        "machine and copy the .sif and .json",
    ),
    "noexec": (
        r"'(noexec|nodev)' mount option set on|mounted with noexec or nodev",
        "{build} is mounted with noexec or nodev: set APPTAINER_TMPDIR to a folder on "
        "another disk of this machine, not on a network file system",
    ),
    "root": (
        r"Requesting capability set \S+ while permitted capability set is",
        "root lacks a capability that Apptainer passes on, because this machine is a "
        "container: use an ordinary user account; to run images without building, "
        "`root default capabilities = no` in apptainer.conf helps, too",
    ),
    "registry": (
        r"(pinging container registry|reading manifest) \S+:.*",
        "the registry does not give the image ({found}): check the network, the name "
        "and, for a private image, `apptainer registry login`",
    ),
    "format": (
        r"image format not recognized|trying to read the squashfs image",
        "the file is no image, or only a part of one: copy or pull it again",
    ),
    "mirror": (
        r"Failed getting release file \S+|(?m:^E: Failed to fetch \S+)",
        f"the Debian mirror failed: {{found}}: {MIRROR_REMEDY}",
    ),
}
