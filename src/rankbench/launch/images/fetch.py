"""What an image is built from, fetched and checked before the build.

`%post` reaches the Debian mirror alone: it trusts no authority that a site has of its
own, and what it installs is to be what was checked here.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from rankbench.launch.images.store import SOURCES, Image, requirements_of

DOWNLOADS = ".downloads"

# Of the C library; that of Debian 12. Newer wheels would not load there.
_NEWEST_GLIBC = 36


@contextmanager
def fetched(image: Image, *, log: Callable[[str], object]) -> Iterator[Path]:
    """A folder with every wheel and source of the image, for as long as it is built.

    What has been fetched before is not fetched again: without a network it is enough
    that the folder `.downloads` beside the image has been carried there.

    Args:
        image: one that is built.
        log: gets what pip says.

    Raises:
        ValueError: something cannot be had, or is not what its hash says.
    """
    downloads = image.sidecar.parent / DOWNLOADS
    downloads.mkdir(parents=True, exist_ok=True)
    folders = [
        _fetch(image, file, downloads, log) for file in requirements_of(image.promise)
    ]
    with tempfile.TemporaryDirectory(prefix=".build-", dir=downloads) as together:
        # Two requirements files may name one package.
        files = {path.name: path for folder in folders for path in folder.iterdir()}
        for name, path in files.items():
            os.link(path, Path(together, name))
        yield Path(together)


def _fetch(
    image: Image, file: str, downloads: Path, log: Callable[[str], object]
) -> Path:
    """The folder of one requirements file: it is there complete, or not at all."""
    name, key = Path(file).name, image.inputs[file][:12]
    if name == SOURCES:
        place = downloads / f"{name}-{key}"
        # Looks at the metadata of the sources, by means that are installed here.
        options = ["--no-binary", ":all:", "--no-build-isolation"]
    else:
        python = image.promise["python"]
        place = downloads / f"{name}-{python}-{key}"
        options = ["--only-binary", ":all:", *_platform(python)]
    with FileLock(f"{place}.lock"):
        if place.exists():
            return place
        partial = Path(f"{place}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        _download(image.containers / file, partial, options, log)
        partial.rename(place)
    return place


def _download(
    requirements: Path, to: Path, options: Sequence[str], log: Callable[[str], object]
) -> None:
    # The machine's own configuration of pip says where from.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes"]
    command += [*options, "--progress-bar", "off", "--dest", str(to)]
    done = subprocess.run(
        [*command, "-r", str(requirements)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    log(done.stdout)
    if done.returncode:
        shutil.rmtree(to, ignore_errors=True)
        raise ValueError(_explain(done.stdout, requirements))


def _platform(python: str) -> list[str]:
    """For an image, whatever Python and system this machine has."""
    machine = platform.machine()
    names = [f"manylinux_2_{minor}" for minor in range(_NEWEST_GLIBC, 4, -1)]
    names += ["manylinux2014", "manylinux2010", "manylinux1", "linux"]
    options = ["--implementation", "cp", "--python-version", python]
    for name in names:
        options += ["--platform", f"{name}_{machine}"]
    return options


def _explain(said: str, requirements: Path) -> str:
    """What pip's errors mean for who wants the image."""
    errors = [line for line in said.splitlines() if line.startswith("ERROR: ")]
    first = errors[0].removeprefix("ERROR: ") if errors else "pip said nothing"
    if "No space left on device" in said:
        return f"the disk is full: {first}"
    if "DO NOT MATCH THE HASHES" in said:
        return (
            f"pip got other files than {requirements} names: what serves them was "
            "changed, or serves builds of its own: leave that index out"
        )
    return (
        f"{first}: pip looks where its own configuration says (`pip config list`); for "
        "CPU builds of torch set PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS as "
        "requirements-torch.txt says; without a network carry the folder .downloads "
        "here from a machine that has one"
    )
