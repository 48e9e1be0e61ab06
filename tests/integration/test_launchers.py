"""Launchers that are programs of their own start real ranks, and leave none behind."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from test_faults import in_training, prepare, row_of
from test_run import read_table, records_of

pytestmark = pytest.mark.integration

EXPERIMENT = """
name: small
strategy: [ddp, horovod, deepspeed]
backend: [gloo, mpi]
topology: 1x2
model: lenet
launcher: [mpirun, horovodrun, deepspeed]
launches: 1
steps: 3
gate: false
time_limit: 90
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


def test_they_measure_the_same_training(project) -> None:
    require("mpirun", "horovodrun", "deepspeed")
    project.experiment(EXPERIMENT)
    done = project.snakemake(timeout=600)
    assert done.returncode == 0, done.stdout
    rows = read_table(project.root).values()
    states = {
        (row["strategy"], row["backend"], row["launcher"]): row["status"]
        for row in rows
    }
    assert {cell for cell, status in states.items() if status == "ok"} == RUNS_HERE
    assert all(states[c] == "unsupported" for c in states.keys() - RUNS_HERE)
    records = [json.loads(text) for text in records_of(project.root).values()]
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
        # It says how a rank ended, but not which.
        ("deepspeed", "rank 1 ended without a word"),
    ],
)
def test_a_rank_that_is_killed(project, launcher: str, words: str) -> None:
    require(launcher)
    cell = prepare(project, "killed", launcher=launcher)
    done = project.snakemake()
    assert done.returncode == 0, done.stdout
    row = row_of(project, cell)
    assert row["status"] == "crashed"
    assert words in row["reason"]
    assert not project.processes()


@pytest.mark.parametrize("launcher", ["mpirun", "horovodrun", "deepspeed"])
def test_nothing_is_left_of_a_launch_that_is_ended(project, launcher: str) -> None:
    """horovodrun puts its ranks into sessions of their own."""
    require(launcher)
    cell = prepare(project, "hang", launcher=launcher, limit=30)
    run = project.start()
    project.wait_for(lambda: in_training(project, cell), what="training")
    # Before the run knows of it, everything is there: launcher, helpers, ranks.
    begun = project.processes()
    assert len([p for p in begun if "rankbench.rank" in " ".join(p.cmdline())]) >= 2
    assert run.wait(120) == 0
    row = row_of(project, cell)
    assert row["status"] == "timeout"
    assert "time limit of 30 s reached" in row["reason"]
    assert not project.processes()
