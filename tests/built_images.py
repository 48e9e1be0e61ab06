"""The images that tests run cells in: built ones, or such as are built meanwhile."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

import pytest

ROOT = Path(__file__).resolve().parents[1]
USER = "rankbench"
NAMES = ("gloo-cpu", "mpi-cpu")
PATIENCE = 2700.0  # seconds

_builds: dict[str, tuple[subprocess.Popen[str], IO[str]]] = {}


def as_ordinary_user() -> list[str]:
    """What stands before a command that an ordinary user is to run.

    Root stands aside for the user of tests/machine/add_user.sh: users of clusters are
    not root, and Apptainer builds for them.
    """
    return ["runuser", "-u", USER, "--"] if os.getuid() == 0 else []


def start_builds() -> None:
    """Build what is not there, beside the tests that need none; those come first.

    Nothing that is measured is at stake, and tests go first on the cores.
    """
    if not shutil.which("apptainer"):
        return
    folder = _folder()
    home = pwd.getpwnam(USER).pw_dir if os.getuid() == 0 else str(Path.home())
    prefix = [*as_ordinary_user(), "env", f"HOME={home}", "nice", "-n", "19"]
    subprocess.run([*prefix, "mkdir", "-p", str(folder)], check=True)
    for name in NAMES:
        command = [sys.executable, "-m", "rankbench.launch.images", "build", name]
        mirror = os.environ.get("DEBIAN_MIRROR", "auto")
        said = tempfile.TemporaryFile("w+")  # noqa: SIM115 (until the build has ended)
        build = subprocess.Popen(
            [*prefix, *command, "--image-dir", str(folder), "--mirror", mirror],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        _builds[name] = build, said


def end_builds() -> None:
    """Those that nobody waits for any more."""
    for build, said in _builds.values():
        if build.poll() is None:
            os.killpg(build.pid, signal.SIGTERM)
            build.wait()
        said.close()
    _builds.clear()


def find_images(*names: str) -> Path:
    """Their folder, once they are there; skips the test where one of them is not."""
    if not shutil.which("apptainer"):
        pytest.skip("no apptainer: bash tests/machine/install_apptainer.sh")
    folder = _folder()
    for name in names:
        if name in _builds:
            _await_build(name)
        if not (folder / f"{name}.json").exists():
            pytest.skip(
                f"no {name} in {folder} (RANKBENCH_IMAGES names another): "
                f"python -m rankbench.launch.images build {name}"
            )
    return folder


def _await_build(name: str) -> None:
    build, said = _builds[name]
    # Now that a test waits for it, it need not stand back.
    subprocess.run(["renice", "-n", "0", "-g", str(build.pid)], capture_output=True)
    if build.wait(PATIENCE) != 0:
        said.seek(0)
        pytest.fail(f"{name} was not built:\n{said.read()}", pytrace=False)


def _folder() -> Path:
    return Path(os.environ.get("RANKBENCH_IMAGES", ROOT / "images")).resolve()
