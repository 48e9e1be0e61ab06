"""The cluster that these tests share."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from allocations import Site
from desks import Desk, make_desk
from logins import Snakemake, start
from pretend_cluster import Cluster
from pretend_down import down
from pretend_host import PretendError
from pretend_up import FOR_SSH, check_machine, revive, up
from site_files import SITE_FILE, look_more_often

from conftest import copy_project, find_images

USER = os.environ.get("PRETEND_USER", "rankbench")
IMAGES = ("gloo-cpu", "mpi-cpu")


@pytest.fixture(scope="session")
def machine() -> None:
    """A machine that can have a cluster."""
    try:
        check_machine(USER)
    except PretendError as error:
        pytest.skip(f"no pretend cluster: {error}")


@pytest.fixture(scope="session")
def shared(machine: None) -> Iterator[Path]:
    """A folder that login side and hosts see, and the user may write to."""
    folder = Path(tempfile.mkdtemp(prefix="pretend-shared-"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def cluster(shared: Path) -> Iterator[Cluster]:
    """Four hosts with Slurm. A test that slows or cuts a link mends it."""
    cluster = up(shared / "cluster", user=USER, shared=[shared, Path(sys.prefix)])
    yield cluster
    down(cluster.state)


@pytest.fixture(scope="session")
def ssh_cluster() -> Iterator[Cluster]:
    """Four hosts with sshd and without Slurm."""
    try:
        check_machine(USER, FOR_SSH)
    except PretendError as error:
        pytest.skip(f"no hosts with sshd: {error}")
    folder = Path(tempfile.mkdtemp(prefix="pretend-ssh-"))
    folder.chmod(0o1777)
    shared = shared_of(folder)
    cluster = up(folder / "cluster", user=USER, shared=shared, slurm=False)
    yield cluster
    down(cluster.state)
    shutil.rmtree(folder)


def shared_of(folder: Path) -> list[Path]:
    return [folder, Path(sys.prefix)]


@pytest.fixture
def restart(ssh_cluster: Cluster) -> Callable[[str], None]:
    """Let a host that has crashed start again."""
    shared = shared_of(ssh_cluster.state.parent)
    return lambda name: revive(ssh_cluster, name, shared)


@pytest.fixture(scope="session")
def shared_desk(ssh_cluster: Cluster, digits_file: Path) -> Desk:
    """The first host, with the project in a folder that all hosts see."""
    folder = ssh_cluster.state.parent / "project"
    return make_desk(ssh_cluster, "node1", digits_file, at=folder)


@pytest.fixture(scope="session")
def apart_desk(ssh_cluster: Cluster, digits_file: Path) -> Desk:
    """The last host, which measures on others; no two hosts share files."""
    return make_desk(ssh_cluster, "node4", digits_file)


@pytest.fixture(scope="session")
def python(cluster: Cluster) -> str:
    """This Python, with torch, where the hosts' user may run it."""
    try:
        cluster.run(sys.executable, "-c", "import torch")
    except PretendError as error:
        pytest.skip(
            f"{USER} cannot run {os.path.realpath(sys.executable)}: make the folders "
            f"above it passable (chmod o+x), or .venv with another Python ({error})"
        )
    return sys.executable


@pytest.fixture(scope="module")
def site(
    cluster: Cluster,
    python: str,
    shared: Path,
    digits_file: Path,
    request: pytest.FixtureRequest,
) -> Site:
    """A copy of the project for the first two hosts, of the user's own."""
    root = shared / request.path.stem
    (root / "data").mkdir(parents=True)
    project = copy_project(root)
    shutil.copy(digits_file, root / "data/digits.npz")
    look_more_often(root / "slurm_profile/config.yaml")
    for path in (root, *root.rglob("*")):
        shutil.chown(path, USER)
    return Site(cluster, project, python)


@pytest.fixture(scope="session")
def images(shared: Path) -> Path:
    """Built images, in a folder that the hosts see."""
    folder = find_images(*IMAGES)
    # Each host has its own /tmp, and the user writes files beside the images.
    place = shared / "images"
    place.mkdir(mode=0o777)
    place.chmod(0o777)
    for name in IMAGES:
        for suffix in ("sif", "json"):
            shutil.copy(folder / f"{name}.{suffix}", place)
    return place


@pytest.fixture(scope="module")
def profile(site: Site) -> Path:
    """The Slurm profile of the project, with the facts of the pretend cluster."""
    folder = site.project.root / "slurm_profile"
    (folder / "site.yaml").write_text(SITE_FILE)
    return folder


@pytest.fixture(scope="module")
def run(site: Site, profile: Path) -> Callable[..., subprocess.Popen[str]]:
    """Start a command of this Python's environment as the user, in the project."""
    return partial(start, site)


@pytest.fixture(scope="module")
def snakemake(run: Callable[..., subprocess.Popen[str]]) -> Snakemake:
    """Run Snakemake to its end; what it said."""

    def go(*argv: str, status: int = 0) -> str:
        if "--config" in argv:
            # Plots have tests of their own.
            place = argv.index("--config") + 1
            argv = (*argv[:place], "plots=false", *argv[place:])
        process = run("snakemake", *argv)
        said, _ = process.communicate(timeout=600)
        assert process.returncode == status, said
        return said

    return go
