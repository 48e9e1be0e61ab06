"""The cluster that these tests share."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from allocations import Site
from pretend_cluster import Cluster
from pretend_down import down
from pretend_host import PretendError
from pretend_up import check_machine, up

from conftest import copy_project

USER = os.environ.get("PRETEND_USER", "rankbench")


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
    for path in (root, *root.rglob("*")):
        shutil.chown(path, USER)
    return Site(cluster, project, python)
