"""Bills of materials of an image, in CycloneDX: Debian's packages, and Python's.

Two tools make them outside of the image, from its lists of packages. They are optional:
the extra `bills` installs them.

    IMAGE_DIR/NAME.debian.cdx.json    by debsbom, from dpkg's status file
    IMAGE_DIR/NAME.python.cdx.json    by cyclonedx-py, from names and versions
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from rankbench.record import first_line, write_atomically

# Kinds of bills, as in the names of their files.
KINDS = ("debian", "python")

_STATUS = "var/lib/dpkg/status"
_SECONDS = 600


def bill_of(sidecar: Path, kind: str) -> Path:
    """The file of a bill, beside the sidecar of its image."""
    return sidecar.with_name(f"{sidecar.stem}.{kind}.cdx.json")


def find_tools() -> dict[str, str]:
    """Kind of a bill -> the program that makes it, for those that are installed."""
    names = {"debian": "debsbom", "python": "cyclonedx-py"}
    # The programs of a virtual environment need not be on PATH.
    folders = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
    found = {kind: shutil.which(name, path=folders) for kind, name in names.items()}
    return {kind: program for kind, program in found.items() if program}


def write_bills(
    sidecar: Path,
    *,
    sha256: str,
    built: str,
    status: str,
    python: Mapping[str, str],
    tools: Mapping[str, str] | None = None,
) -> list[Path]:
    """Write the bills of an image that the installed tools can make.

    The same image gives the same bytes.

    Args:
        sidecar: of the image; the bills lie beside it.
        sha256: of the image.
        built: time in ISO 8601.
        status: dpkg's status file of the image; empty without dpkg.
        python: name -> version of the packages of the image's Python.
        tools: from `find_tools`.

    Raises:
        ValueError: a tool fails; says why.
    """
    tools = find_tools() if tools is None else tools
    for kind in KINDS:
        bill_of(sidecar, kind).unlink(missing_ok=True)
    written = []
    with tempfile.TemporaryDirectory() as place:
        if "debian" in tools and status:
            root = Path(place, "root")
            (root / _STATUS).parent.mkdir(parents=True)
            (root / _STATUS).write_text(status)
            # An identifier that follows from the image.
            number = uuid.uuid5(uuid.NAMESPACE_URL, f"sha256:{sha256}")
            words = ["generate", "-t", "cdx", "-r", str(root), "--timestamp", built]
            words += ["--cdx-serialnumber", str(number), "--cdx-schema-version", "1.6"]
            words += ["--distro-name", sidecar.stem, "-o", "-"]
            text = _run([tools["debian"], *words], place)
            written.append(_write(bill_of(sidecar, "debian"), text))
        if "python" in tools:
            listed = Path(place, "requirements.txt")
            lines = [f"{name}=={one}\n" for name, one in sorted(python.items())]
            listed.write_text("".join(lines))
            words = ["requirements", "--output-reproducible", "--sv", "1.6", "-o", "-"]
            text = _run([tools["python"], *words, str(listed)], place)
            written.append(_write(bill_of(sidecar, "python"), text))
    return written


def _run(command: Sequence[str], place: str) -> str:
    done = subprocess.run(
        command,
        cwd=place,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or ["no message"]
        name = Path(command[0]).name
        raise ValueError(f"{name} makes no bill of materials: {first_line(said[-1])}")
    return done.stdout


def _write(path: Path, text: str) -> Path:
    write_atomically(path, text.encode())
    return path
