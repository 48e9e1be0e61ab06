"""Checks for causes that prevent building or running images, with their remedies."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rankbench.launch.hosts.base import run_to_end
from rankbench.launch.images import apptainer

MIRROR_TIMEOUT = 20.0  # seconds
GIB = 1024**3


def check_runs(image: Path) -> None:
    """Start a container of the image that does nothing: 0.2 s.

    Raises:
        ValueError: it does not start; says why, and what to do.
    """
    run_inside(image, ["true"], lambda why: f"{image} does not start here: {why}")


def run_inside(
    image: Path, command: Sequence[str], explain: Callable[[str], str], **settings: Any
) -> list[str]:
    """Run a command in an image; return what it prints, as lines.

    Args:
        image: the file of the image.
        command: what is run.
        explain: the message if it fails, from the cause.
        settings: as for `apptainer.execute`.

    Raises:
        ValueError: the command fails.
    """
    said: list[str] = []
    try:
        said.extend(apptainer.execute(image, command, **settings))
    except subprocess.CalledProcessError:
        log = "".join(said)
        raise ValueError(explain(diagnose(log) or last_words(log))) from None
    return said


def find_mirror(
    configured: str, *, tell: Callable[[str], object] = lambda _: None
) -> str:
    """Return the Debian mirror to build images from.

    Args:
        configured: site key `debian_mirror`: an address, or ``auto`` for the mirror
            that this machine's own apt uses, or else debootstrap's default.
        tell: receives a line if debootstrap's default is used.

    Raises:
        ValueError: ``auto``, and neither apt nor debootstrap names a mirror.
    """
    if configured != "auto":
        return configured
    fields = "$(LABEL)|$(REPO_URI)"
    command = ["apt-get", "indextargets", "--format", fields, "Created-By: Packages"]
    try:
        sources = run_to_end(command).stdout.splitlines()
    except OSError:
        sources = []
    for label, _, uri in (line.partition("|") for line in sources):
        # debootstrap cannot use Debian's security archive or backports.
        debian = label == "Debian" or (
            not label and uri.rstrip("/").endswith("/debian")
        )
        if debian and uri.startswith(("http", "file")):
            return uri
    program = find_debootstrap()
    # debootstrap is a shell script on every distribution.
    said = program.read_text(errors="replace")
    found = re.search(r"(?m)^DEF_MIRROR=[\"']?(\w+://[^\s\"']+)", said)
    if found is None:
        raise ValueError(
            f"this machine's apt names no Debian mirror, and {program} names no "
            "default: set `debian_mirror` in site.yaml to the address of a mirror"
        )
    address = found[1]
    tell(
        f"this machine's apt names no Debian mirror: using debootstrap's default, "
        f"{address} (set `debian_mirror` in site.yaml for another)"
    )
    return address


def find_debootstrap() -> Path:
    """Return the path of debootstrap, which installs Debian into an image.

    Raises:
        ValueError: it is not installed; the message names the package.
    """
    # An ordinary user's PATH may lack the folder of debootstrap.
    folders = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    if program := shutil.which("debootstrap", path=folders):
        return Path(program)
    raise ValueError(
        "debootstrap is not installed, and building images needs it: have the "
        "machine's operator install the package `debootstrap` (Debian, Ubuntu: "
        "`apt-get install debootstrap`; RHEL, Rocky, Alma: `dnf install epel-release`, "
        "then `dnf install debootstrap`), or build on another machine and copy the "
        ".sif and .json"
    )


def check_mirror(mirror: str, suite: str) -> None:
    """Check the mirror: request the file that a build requests first.

    Raises:
        ValueError: the file cannot be fetched.
    """
    address = f"{mirror.rstrip('/')}/dists/{suite}/InRelease"
    try:
        with urllib.request.urlopen(address, timeout=MIRROR_TIMEOUT) as answer:  # noqa: S310 (the mirror is the user's own)
            answer.read(1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise ValueError(
            f"the Debian mirror cannot be reached: {address}: {reason}: {_MIRROR}"
        ) from None


def check_builds() -> None:
    """Build an image of nothing, before anything is downloaded: half a second.

    Raises:
        ValueError: this machine does not build images; says why, and what to do.
    """
    said: list[str] = []
    why = None
    with tempfile.TemporaryDirectory() as folder:
        definition = Path(folder, "nothing.def")
        definition.write_text("Bootstrap: scratch\n")
        try:
            said.extend(apptainer.build(Path(folder, "nothing.sif"), definition, ()))
        except subprocess.CalledProcessError:
            why = last_words("".join(said))
    # Without a range of user ids, only images with something in them fail.
    if why := diagnose("".join(said)) or why:
        raise ValueError(why)


def check_space(needed: Mapping[Path, float]) -> None:
    """Check that there is enough disk space to build.

    Args:
        needed: folder that the build writes to -> GiB that it needs there.

    Raises:
        ValueError: a folder has too little space; the message names the first.
    """
    for place, needs in needed.items():
        free = shutil.disk_usage(place).free / GIB
        if free < needs:
            raise ValueError(
                f"{place} has {free:.1f} GiB free, the build needs {needs:g} GiB: "
                f"{_SPACE}"
            )


def build_dir() -> Path:
    """Return the folder in which Apptainer unpacks images during a build."""
    return Path(os.environ.get("APPTAINER_TMPDIR") or tempfile.gettempdir())


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
    return "\n".join(said[-lines:]) or "it printed nothing"


_MIRROR = (
    "check the network, or set `debian_mirror` in site.yaml to a mirror that is "
    "reachable from here"
)
_SPACE = (
    "make room, or use a larger disk: set `image_dir` in site.yaml (images) and "
    "APPTAINER_TMPDIR (files during a build)"
)


# The causes by name; tests/real_logs has a log of each. The first match in this order
# counts, because others may be its consequences.
_CAUSES = {
    "disk": (
        r"(?i:no space left on device|disk quota exceeded)",
        f"the disk is full: {_SPACE}",
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
        f"the Debian mirror failed: {{found}}: {_MIRROR}",
    ),
}
