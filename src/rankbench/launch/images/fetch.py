"""What an image is built from, fetched and checked before the build.

`%post` reaches the Debian mirror alone: it trusts no authority that a site has of its
own, and what it installs is to be what was checked here.
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

# Of the C library; that of Debian 12. Newer wheels would not load there.
_NEWEST_GLIBC = 36


@contextmanager
def fetched(
    image: Image, *, torch_index: str, log: Callable[[str], object]
) -> Iterator[Path]:
    """A folder with every wheel and source of the image, for as long as it is built.

    What has been fetched before is not fetched again: without a network it is enough
    that the folder `.downloads` beside the image has been carried there.

    Args:
        image: one that is built.
        torch_index: site key `torch_index`: asked for torch and torchvision if the
            sources that pip is configured for lack them; ``off``: nothing is.
        log: gets what pip says.

    Raises:
        ValueError: something cannot be had, or is not what its hash says.
    """
    downloads = image.sidecar.parent / DOWNLOADS
    downloads.mkdir(parents=True, exist_ok=True)
    folders = [
        _fetch(image, file, downloads, torch_index, log)
        for file in requirements_of(image.promise)
    ]
    with tempfile.TemporaryDirectory(prefix=".build-", dir=downloads) as together:
        # Two requirements files may name one package.
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
    """For an image, whatever Python and system this machine has."""
    machine = platform.machine()
    names = [f"manylinux_2_{minor}" for minor in range(_NEWEST_GLIBC, 4, -1)]
    names += ["manylinux2014", "manylinux2010", "manylinux1", "linux"]
    options = ["--implementation", "cp", "--python-version", python]
    for name in names:
        options += ["--platform", f"{name}_{machine}"]
    return options


def _explain(error: PipError, requirements: Path, torch_index: str) -> str:
    """What pip's errors mean for who wants the image."""
    if "No space left on device" in error.said:
        return f"the disk is full: {error}"
    if "DO NOT MATCH THE HASHES" in error.said:
        return (
            f"pip got other files than {requirements} names: what serves them was "
            "changed, or serves builds of its own: leave that index out"
        )
    configured = "pip looks where its own configuration says (`pip config list`)"
    if "distribution found for torch" in str(error):
        configured = f"{where_looked(torch_index)} (`torch_index` in site.yaml)"
    return (
        f"{error}: {configured}; check the network and the configuration; without a "
        "network carry the folder .downloads here from a machine that has one"
    )
