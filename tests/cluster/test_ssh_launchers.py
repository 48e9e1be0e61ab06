"""Every launcher starts the same training over two hosts by ssh, without Slurm."""

from __future__ import annotations

import pytest
from desks import Desk
from pretend_sshd import wait_until_gone

from rankbench.record import Layout, read_attempt

pytestmark = pytest.mark.cluster

EXPERIMENT = """
name: launchers
model: lenet
topology: 2x1
launches: 1
repeat_disturbed: false
steps: 3
gate: false
time_limit: 120
blocks:
  - strategy: ddp
    launcher: [torchrun, torch_launch, spawn, manual, mpirun, horovodrun, srun]
  - strategy: ddp
    launcher: manual
    init_method: file
  - strategy: [horovod, deepspeed]
"""
DDP = "ddp.gloo.2x1.lenet.digits.launcher="
FILE = f"{DDP}manual.init_method=file"
SRUN = f"{DDP}srun"


@pytest.mark.parametrize(
    "place", [pytest.param("shared", marks=pytest.mark.long), "apart"]
)
def test_launchers_measure_the_same_training(request, place):
    desk: Desk = request.getfixturevalue(f"{place}_desk")
    said = desk.measure(EXPERIMENT, "launchers")
    table = desk.table("launchers")
    records = {cell: found for cell, (found,) in desk.records("launchers").items()}
    unable = {SRUN} if place == "shared" else {SRUN, FILE}
    assert {c for c, row in table.items() if row["status"] == "unsupported"} == unable
    assert records.keys() == table.keys() - unable
    bad = {cell: r["reason"] for cell, r in records.items() if r["status"] != "ok"}
    assert not bad, said
    for record in records.values():
        assert "unclean-end" not in record["marks"], record["parting"]
        assert [rank["rank"] for rank in record["ranks"]] == [0, 1]
        assert [rank["host"] for rank in record["ranks"]] == ["node1", "node2"]
        assert [rank["node"] for rank in record["ranks"]] == [0, 1]
        assert [host["host"] for host in record["hosts"]] == ["node1", "node2"]
        assert record["launcher"]["hosts"] == ["node1", "node2"]
    ddp = [record for cell, record in records.items() if cell.startswith("ddp")]
    for record in ddp:
        assert record["loss"] == pytest.approx(ddp[0]["loss"], rel=1e-5)
    layout = Layout(desk.project.root / "results/launchers")
    (check,) = read_attempt(layout.network)
    assert [link["hosts"] for link in check["network"]] == [["node1", "node2"]]
    assert check["network"][0]["gb_s"] > 0
    wait_until_gone(desk.cluster)
    assert not desk.left_on("node1")
    assert not desk.left_on("node2")
