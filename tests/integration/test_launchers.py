"""Launchers that are programs of their own start real ranks, and leave none behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import faulty_strategies
import pytest
from pretend_host import wait_until
from test_faults import cell_of, prepare, row_of
from test_run import records_of

from conftest import Project
from evidence import read_table

pytestmark = pytest.mark.integration

EXPERIMENT = """
name: faults
topology: 1x2
model: lenet
launcher: [mpirun, horovodrun, deepspeed]
launches: 1
steps: 3
gate: false
time_limit: 90
blocks:
  - strategy: [ddp, horovod, deepspeed]
    backend: [gloo, mpi]
  - strategy: killed
"""

RUNS_HERE = {
    ("ddp", "gloo", "mpirun"),
    ("ddp", "gloo", "horovodrun"),
    ("ddp", "gloo", "deepspeed"),
    ("horovod", "gloo", "mpirun"),
    ("horovod", "gloo", "horovodrun"),
    ("horovod", "mpi", "mpirun"),
    ("horovod", "mpi", "horovodrun"),
    ("deepspeed", "gloo", "mpirun"),
    ("deepspeed", "gloo", "deepspeed"),
}


def require(*programs: str) -> None:
    """Skip where one is missing."""
    places = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for name in programs:
        if not shutil.which(name, path=places):
            remedy = (
                "apt-get install openmpi-bin" if name == "mpirun" else "make extras"
            )
            pytest.skip(f"{name} is not installed: {remedy}")


@pytest.fixture(scope="module")
def launched(shared_project: Project) -> Project:
    """A project with the experiment run once."""
    require("mpirun", "horovodrun", "deepspeed")
    shared_project.add_strategy("killed", faulty_strategies.KILLED)
    shared_project.experiment(EXPERIMENT)
    done = shared_project.snakemake(timeout=600)
    assert done.returncode == 0, done.stdout
    assert not shared_project.processes("rankbench.rank")
    shared_project.wait_until_gone()
    return shared_project


def test_they_measure_the_same_training(launched):
    rows = read_table(launched.root, "faults").values()
    states = {
        (row["strategy"], row["backend"], row["launcher"]): row["status"]
        for row in rows
        if row["strategy"] != "killed"
    }
    assert {cell for cell, status in states.items() if status == "ok"} == RUNS_HERE
    assert all(states[c] == "unsupported" for c in states.keys() - RUNS_HERE)
    found = records_of(launched.root, name="faults")
    records = [
        json.loads(text)
        for path, text in found.items()
        if not path.startswith("killed.")
    ]
    first = records[0]["loss"]
    for record in records:
        assert record["loss"] == pytest.approx(first, rel=1e-5)
        assert [rank["rank"] for rank in record["ranks"]] == [0, 1]
        cores = [set(rank["cores"]) for rank in record["ranks"]]
        assert not cores[0] & cores[1]


@pytest.mark.parametrize(
    ("launcher", "words"),
    [
        ("mpirun", "rank 1 was ended by SIGKILL"),
        ("horovodrun", "rank 1 was ended by SIGKILL"),
        # This launcher prints how a rank ended, but not which rank.
        ("deepspeed", "rank 1 ended without a word"),
    ],
)
def test_a_rank_that_is_killed(launched, launcher, words):
    row = row_of(launched, cell_of("killed", launcher))
    assert row["status"] == "crashed"
    assert words in row["reason"]


@pytest.mark.parametrize("launcher", ["mpirun", "horovodrun", "deepspeed"])
def test_nothing_is_left_of_a_launch_that_is_ended(project, launcher):
    """horovodrun puts its ranks into sessions of their own."""
    require(launcher)
    cell = prepare(project, "marked_hang", launcher=launcher)
    run = project.start()
    wait_until((project.root / "hangs").exists, "the rank that hangs")
    # When the run reports the launch, launcher, helpers and ranks all exist.
    assert len(project.processes("rankbench.rank")) >= 2
    os.killpg(run.pid, signal.SIGINT)  # A terminal signals the whole process group.
    said, _ = run.communicate(timeout=600)
    assert f"{cell}  stopped: interrupted by SIGINT" in said
    assert not project.processes("rankbench.rank")
    project.wait_until_gone()
    row = row_of(project, cell)
    assert row["status"] == "cancelled"
    assert row["reason"].startswith("interrupted by SIGINT; rank ")
    assert row["reason"].endswith("; ended by the user: repeated by the next run")
    # Horovod signals its ranks as well: a second SIGTERM may cut a stack short.
    (log,) = project.root.glob("results/*/records/*/1/1/rank1.log")
    is_cut = launcher == "horovodrun" and "Current thread" not in log.read_text()
    assert is_cut or "in go_wrong: time.sleep(10_000)" in row["reason"]
