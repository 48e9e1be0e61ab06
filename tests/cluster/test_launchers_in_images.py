"""Over two hosts in the image of each backend: MPI by PMIx, and without ssh."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from allocations import Site

pytestmark = pytest.mark.cluster

EXPERIMENT = """
name: inside
model: lenet
topology: 2x1
launches: 1
steps: 3
gate: false
time_limit: 300
blocks:
  - strategy: [ddp, horovod]
    backend: mpi
    launcher: [srun, mpirun]
  - strategy: horovod
    backend: gloo
    launcher: [srun, horovodrun]
  - strategy: deepspeed
  - strategy: ddp
    launcher: torchrun
  # A torch without libuv, which torchrun cannot do without.
  - strategy: ddp
    image: mpi
    launcher: [srun, spawn, manual]
"""

ONE = """
name: elsewhere
model: lenet
strategy: ddp
topology: 2x1
launches: 1
steps: 3
gate: false
time_limit: 300
"""


def test_every_backend_across_hosts(site: Site, images: Path) -> None:
    site.use_images(images)
    cells = site.plan(EXPERIMENT, "inside")
    assert len(cells) == 11
    said = site.measure("inside", cells)
    records = {cell: found for cell, (found,) in site.records("inside").items()}
    assert records.keys() == set(cells), said
    bad = {cell: r["reason"] for cell, r in records.items() if r["status"] != "ok"}
    assert not bad
    for cell, record in records.items():
        assert [rank["host"] for rank in record["ranks"]] == ["node1", "node2"]
        mpi = ".mpi." in cell or "image=mpi" in cell
        assert record["image"]["name"] == ("mpi-cpu" if mpi else "gloo-cpu")
    assert not site.processes()


def test_an_image_that_the_hosts_do_not_see(
    site: Site, images: Path, open_tmp: Path
) -> None:
    """The supervisor sees it: under salloc that is on the login side."""
    elsewhere = open_tmp / "images"
    shutil.copytree(images, elsewhere, copy_function=os.link)
    elsewhere.chmod(0o777)
    site.use_images(elsewhere)
    (cell,) = site.plan(ONE, "elsewhere")
    site.measure("elsewhere", [cell])
    for record in site.records("elsewhere")[cell]:
        assert record["status"] == "crashed"
        assert "the image does not start on the host node" in record["reason"]
        assert str(elsewhere) in record["reason"]
