"""Over two hosts in the image of each backend: MPI by PMIx, and without ssh."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from allocations import Site
from pretend_host import PretendError

pytestmark = pytest.mark.cluster

SCRATCH = "/tmp/scratch"  # noqa: S108 (a host of the cluster has a /tmp of its own)

# Habits of the user that change what a container sees: ranks must not inherit them.
SWITCHES = "export APPTAINER_CLEANENV=1 APPTAINER_CONTAINALL=1 APPTAINER_NO_HOME=1"

EXPERIMENT = """
name: inside
model: lenet
topology: 2x1
launches: 1
steps: 3
gate: false
time_limit: 300
blocks:
  - {strategy: ddp, backend: mpi, launcher: srun}
  - {strategy: horovod, backend: mpi, launcher: mpirun}
  - strategy: horovod
    backend: gloo
    launcher: [srun, horovodrun]
  - strategy: deepspeed
  - strategy: ddp
    launcher: torchrun
  # A torch without libuv, which torchrun cannot do without.
  - strategy: ddp
    image: mpi
    launcher: spawn
"""

ONE = """
name: elsewhere
model: lenet
strategy: ddp
topology: 2x1
launches: 1
steps: 3
gate: false
network_check: false
time_limit: 300
"""


def test_every_backend_across_hosts(site, images):
    site.use_images(images)
    # Ranks write their files into a folder that is bound into the image.
    for name in ("node1", "node2"):
        site.cluster.hosts[name].do("mkdir", "-p", "--mode=1777", SCRATCH)
    cells = site.plan(EXPERIMENT, "inside", facts=f"scratch: {SCRATCH}\n")
    assert len(cells) == 7
    said = site.measure("inside", cells[:-1], before=SWITCHES)
    programs = only_singularity(site.project.root / "programs")
    said += site.measure("inside", cells[-1:], before=f"export PATH={programs}")
    records = {cell: found for cell, (found,) in site.records("inside").items()}
    assert records.keys() == set(cells), said
    bad = {cell: r["reason"] for cell, r in records.items() if r["status"] != "ok"}
    assert not bad
    for cell, record in records.items():
        assert [rank["host"] for rank in record["ranks"]] == ["node1", "node2"]
        mpi = ".mpi." in cell or "image=mpi" in cell
        assert record["image"]["name"] == ("mpi-cpu" if mpi else "gloo-cpu")
        assert record["launcher"]["env"]["TMPDIR"].startswith(SCRATCH)
    called = {cell: record["launcher"]["argv"] for cell, record in records.items()}
    assert [cell for cell in cells if "apptainer" not in called[cell]] == cells[-1:]
    assert "singularity" in called[cells[-1]]
    for name in ("node1", "node2"):
        assert not site.cluster.hosts[name].do("ls", SCRATCH)
    site.wait_until_gone()


def only_singularity(folder: Path) -> Path:
    """All programs of this machine, but Apptainer has the name that it once had."""
    folder.mkdir()
    for place in map(Path, os.get_exec_path()):
        for program in place.glob("*"):
            if not (folder / program.name).exists():
                (folder / program.name).symlink_to(program)
    (folder / "apptainer").replace(folder / "singularity")
    return folder


@pytest.fixture
def lacking(shared: Path, images: Path, site: Site) -> Iterator[Callable[[str], None]]:
    """Takes the folder of images away from a host."""
    nothing = shared / "no-images"
    nothing.mkdir()
    hosts = []

    def lack(name: str) -> None:
        hosts.append(site.cluster.hosts[name])
        hosts[-1].do("mount", "--bind", nothing, images)

    yield lack
    for host in hosts:
        host.do("umount", images)
    nothing.rmdir()


def test_an_image_that_one_host_lacks(site, images, lacking):
    site.use_images(images)
    (cell,) = site.plan(ONE, "elsewhere")
    lacking("node2")
    with pytest.raises(PretendError, match="is left to the next run"):
        site.measure("elsewhere", [cell])
    record, *again = site.records("elsewhere")[cell]
    assert (record["status"], record["cause"], len(again)) == ("cancelled", "host", 2)
    launch = site.project.root / f"results/elsewhere/records/{cell}/1/1"
    log = (launch / "launcher.log").read_text()
    where = "the image does not start on the host node2: "
    assert record["reason"].startswith(where), log
    said = f"could not open image {images}/gloo-cpu.sif"
    # On a busy machine srun may end before it has printed all output of a task.
    assert (said in record["reason"]) == (said in log), log
    site.wait_until_gone()


def test_an_image_that_the_first_host_lacks(site, images, lacking):
    """It is where the supervisor runs, which starts no ranks then."""
    site.use_images(images)
    (cell,) = site.plan(ONE.replace("elsewhere", "nowhere"), "nowhere")
    lacking("node1")
    with pytest.raises(PretendError):
        site.submit("nowhere", cell)
    log = (site.project.root / f"results/nowhere/work/logs/{cell}.log").read_text()
    assert "`rankbench images` makes it" in log
    (record,) = site.records("nowhere")[cell]
    assert (record["status"], record["cause"]) == ("cancelled", "site")
    assert "image gloo-cpu: on the host node1 " in record["reason"]
    assert "`rankbench images` makes it" in record["reason"]
