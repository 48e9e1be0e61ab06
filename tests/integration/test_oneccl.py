"""Horovod over oneCCL, in its image: what CI has no time to build.

python -m rankbench.launch.images oneccl-cpu
pytest -m oneccl
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_containers import make_project, read_records

from conftest import find_images
from evidence import read_table

pytestmark = pytest.mark.oneccl

EXPERIMENT = """
name: oneccl
strategy: horovod
backend: [ccl, mpi]
image: oneccl
launcher: [horovodrun, hydra]
model: lenet
data: synthetic
batch_size: 16
topology: 1x2
launches: 1
repeat_disturbed: false
steps: 4
warmup: 1
time_limit: 120
"""


@pytest.fixture(scope="module")
def images() -> Path:
    """Folder of the built image."""
    return find_images("oneccl-cpu")


def test_horovod_trains_over_oneccl_by_each_of_its_launchers(
    open_tmp, digits_file, ordinary_user, images
):
    project = make_project(open_tmp / "oneccl", digits_file, ordinary_user, images)
    project.measure(EXPERIMENT)
    rows = read_table(project.root, "oneccl").values()
    assert [row["status"] for row in rows] == ["ok"] * 4
    sidecar = json.loads((images / "oneccl-cpu.json").read_text())
    records = read_records(project.root, "oneccl").values()
    assert len(records) == 4
    for record in records:
        assert record["image"]["name"] == "oneccl-cpu"
        assert record["image"]["sha256"] == sidecar["sha256"]
        cores = [set(rank["cores"]) for rank in record["ranks"]]
        assert not cores[0] & cores[1]
