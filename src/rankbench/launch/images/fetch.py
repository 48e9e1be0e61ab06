"""Fetches and checks all packages of an image before the build.

During the build, `%post` reaches only the Debian mirror: it does not trust a site's own
certificate authority, and it must install exactly the packages checked here.
"""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from rankbench.launch.images.store import SOURCES, Image, requirements_of
from rankbench.torch_build import (
    PipError,
    run_pip,
    run_pip_for_torch,
    split_requirements,
    where_looked,
)

DOWNLOADS = ".downloads"

# Minor version of glibc in Debian 12: wheels for newer ones would not load there.
_NEWEST_GLIBC = 36


@contextmanager
def fetched(
    image: Image, *, torch_index: str, log: Callable[[str], object]
) -> Iterator[Path]:
    """Yield a temporary folder with all wheels and sources of an image.

    Earlier downloads are used again. So a machine without a network needs only a copy
    of the folder `.downloads` from beside the image.

    Args:
        image: an image to build.
        torch_index: site key `torch_index`: index for torch and torchvision if pip's
            configured sources lack them; ``off``: no such index.
        log: receives the output of pip.

    Raises:
        ValueError: a package cannot be fetched, or has another hash.
    """
    downloads = image.sidecar.parent / DOWNLOADS
    downloads.mkdir(parents=True, exist_ok=True)
    folders = [
        _fetch(image, file, downloads, torch_index, log)
        for file in requirements_of(image.promise)
    ]
    with tempfile.TemporaryDirectory(prefix=".build-", dir=downloads) as together:
        # Two requirements files may name the same package.
        files = {path.name: path for folder in folders for path in folder.iterdir()}
        for name, path in files.items():
            os.link(path, Path(together, name))
        yield Path(together)


def _fetch(
    image: Image,
    file: str,
    downloads: Path,
    torch_index: str,
    log: Callable[[str], object],
) -> Path:
    """Return the folder of one requirements file; it exists only when complete."""
    name, key = Path(file).name, image.inputs[file][:12]
    if name == SOURCES:
        place = downloads / f"{name}-{key}"
        # pip reads the metadata of sources with the build tools installed here.
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
        _download(image.containers / file, partial, options, torch_index, log)
        partial.rename(place)
    return place


def _download(
    requirements: Path,
    to: Path,
    options: Sequence[str],
    torch_index: str,
    log: Callable[[str], object],
) -> None:
    command = ["download", "--no-deps", "--require-hashes", *options]
    command += ["--progress-bar", "off", "--dest", str(to)]
    to.mkdir()
    torch, others = split_requirements(requirements.read_text())
    try:
        for requirement in torch.values():
            run_pip_for_torch(command, requirement, torch_index, log)
        run_pip(command, others, log)
    except PipError as error:
        shutil.rmtree(to, ignore_errors=True)
        raise ValueError(_explain(error, requirements, torch_index)) from None


def _platform(python: str) -> list[str]:
    """Return pip options for the image's Python and system, not this machine's."""
    machine = platform.machine()
    names = [f"manylinux_2_{minor}" for minor in range(_NEWEST_GLIBC, 4, -1)]
    names += ["manylinux2014", "manylinux2010", "manylinux1", "linux"]
    options = ["--implementation", "cp", "--python-version", python]
    for name in names:
        options += ["--platform", f"{name}_{machine}"]
    return options


def _explain(error: PipError, requirements: Path, torch_index: str) -> str:
    """Return the meaning of an error of pip, with its remedy."""
    if "No space left on device" in error.said:
        return f"the disk is full: {error}"
    if "DO NOT MATCH THE HASHES" in error.said:
        return (
            f"pip got other files than {requirements} names: the index has changed, or "
            "serves its own builds: do not use it"
        )
    configured = "pip uses the indexes of its own configuration (`pip config list`)"
    if "distribution found for torch" in str(error):
        configured = f"{where_looked(torch_index)} (`torch_index` in site.yaml)"
    return (
        f"{error}: {configured}; check the network and the configuration; without a "
        "network, copy the folder .downloads here from a machine with a network"
    )
