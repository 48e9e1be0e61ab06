"""Training scripts of a user, over two hosts with files of their own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytestmark = pytest.mark.cluster

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
EXPERIMENT = """
name: scripts
topology: 2x1
launches: 1
repeat_disturbed: false
warmup: 2
steps: 5
time_limit: 120
samples_per_step: 32
blocks:
  - script: ./data_parallel.py
    args: "--backend {backend}"
    launcher: [torchrun, mpirun]
  - {script: ./deepspeed_loop.py, args: "1", launcher: deepspeed}
  - {script: ./horovod_loop.py, launcher: horovodrun}
"""


def test_scripts_as_they_are(apart_desk):
    desk = apart_desk
    desk.write_site()
    for name in ("data_parallel", "deepspeed_loop", "horovod_loop"):
        shutil.copy(SCRIPTS / f"{name}.py", desk.project.root)
    desk.measure(EXPERIMENT, "scripts")
    rows = desk.table("scripts")
    found = {(row["strategy"], row["launcher"]): row for row in rows.values()}
    assert {key: row["status"] for key, row in found.items()} == {
        ("data_parallel", "torchrun"): "ok",
        ("data_parallel", "mpirun"): "ok",
        ("deepspeed_loop", "deepspeed"): "ok",
        ("horovod_loop", "horovodrun"): "ok",
    }
    for row in rows.values():
        assert float(row["throughput"]) > 0
        assert "unchecked" in row["marks"]
    for (record,) in desk.records("scripts").values():
        assert [rank["host"] for rank in record["ranks"]] == ["node1", "node2"]
        assert record["samples"] == 5 * 32
        assert not record.get("parting")
    # What the scripts wrote went with their launches.
    assert not list(desk.project.root.glob("results/scripts/records/*/*/*/work"))
