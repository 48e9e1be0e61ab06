"""Every launcher starts the same training over two hosts of a real Slurm."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.cluster

EXPERIMENT = """
name: launchers
model: lenet
topology: 2x1
launches: 1
steps: 3
gate: false
network_check: false
time_limit: 300
blocks:
  - strategy: ddp
    launcher: [srun, torchrun, spawn, manual, mpirun]
  - strategy: ddp
    launcher: manual
    init_method: [tcp, file]
  - strategy: [horovod, deepspeed]
"""
SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
SCRIPT_EXPERIMENT = """
name: own
topology: 2x1
launches: 1
warmup: 2
steps: 5
time_limit: 120
samples_per_step: 32
blocks:
"""
# Each cell has a different launcher, rendezvous or runtime.
CELLS = {
    "ddp.gloo.2x1.lenet.digits",
    *(
        f"ddp.gloo.2x1.lenet.digits.launcher={name}"
        for name in ("torchrun", "spawn", "manual")
    ),
    "ddp.gloo.2x1.lenet.digits.launcher=manual.init_method=tcp",
    "ddp.gloo.2x1.lenet.digits.launcher=manual.init_method=file",
}
WITH_PROGRAMS = {
    "mpirun": ["ddp.gloo.2x1.lenet.digits.launcher=mpirun"],
    "horovodrun": ["horovod.gloo.2x1.lenet.digits"],
    "deepspeed": ["deepspeed.gloo.2x1.lenet.digits"],
}


def test_launchers_measure_the_same_training(site, program):
    there = [name for name in WITH_PROGRAMS if program(name)]
    wanted = CELLS.union(*(WITH_PROGRAMS[name] for name in there))
    cells = site.plan(EXPERIMENT, "launchers")
    assert set(cells) == wanted
    said = site.measure("launchers", cells)
    records = {cell: found for cell, (found,) in site.records("launchers").items()}
    assert records.keys() == wanted, said
    bad = {cell: r["reason"] for cell, r in records.items() if r["status"] != "ok"}
    assert not bad
    ddp = [r for cell, r in records.items() if cell.startswith("ddp")]
    for record in records.values():
        assert [rank["rank"] for rank in record["ranks"]] == [0, 1]
        assert [rank["host"] for rank in record["ranks"]] == ["node1", "node2"]
        assert [rank["node"] for rank in record["ranks"]] == [0, 1]
        assert [host["host"] for host in record["hosts"]] == ["node1", "node2"]
        assert record["launcher"]["hosts"] == ["node1", "node2"]
        assert record["job_id"] == ddp[0]["job_id"]
        cores = [set(rank["cores"]) for rank in record["ranks"]]
        assert not cores[0] & cores[1]
    for record in ddp:
        assert record["loss"] == pytest.approx(ddp[0]["loss"], rel=1e-5)
    # Each launch is a separate step of the job.
    assert len({record["step_id"] for record in records.values()}) == len(records)
    site.wait_until_gone()


def test_scripts_of_a_user(site, program):
    blocks = ["{script: ./data_parallel.py, args: '--backend {backend}'}"]
    if program("deepspeed"):
        blocks += ["{script: ./deepspeed_loop.py, args: '1', launcher: deepspeed}"]
    for path in SCRIPTS.glob("*.py"):
        shutil.copy(path, site.project.root)
    cells = site.plan(SCRIPT_EXPERIMENT + "\n".join(f"  - {b}" for b in blocks), "own")
    assert len(cells) == len(blocks)
    said = site.measure("own", cells)
    records = {cell: found for cell, (found,) in site.records("own").items()}
    assert records.keys() == set(cells), said
    for record in records.values():
        assert record["status"] == "ok", record["reason"]
        assert [rank["host"] for rank in record["ranks"]] == ["node1", "node2"]
        assert record["samples"] == 5 * 32
    site.wait_until_gone()


@pytest.fixture
def program() -> Callable[[str], bool]:
    """Whether a program is installed; without it the test says less."""
    beside = Path(sys.executable).parent
    return lambda name: (beside / name).exists() or shutil.which(name) is not None


def test_open_mpi_starts_over_pmix(cluster, shared):
    if not shutil.which("mpicc"):
        pytest.skip("no mpicc: apt-get install openmpi-bin libopenmpi-dev gcc")
    program = shared / "hello_mpi"
    source = Path(__file__).with_name("hello_mpi.c")
    subprocess.run(["mpicc", source, "-o", program], check=True)
    launch = ("srun", "--mpi=pmix", "--nodelist=node1,node2", "--ntasks=4")
    assert sorted(cluster.run(*launch, program).splitlines()) == [
        *("0 4 node1 10", "1 4 node1 10"),
        *("2 4 node2 10", "3 4 node2 10"),
    ]
