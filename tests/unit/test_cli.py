"""What commands print as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from rankbench.cli import main
from rankbench.launch.job.claim import make_request
from unit.synthetic import make_cell, plan_cell, write_launches, write_plan

pytestmark = pytest.mark.unit


SINGLE = plan_cell(make_cell("single"))
DDP = plan_cell(make_cell("ddp", "1x2"))


def say_json(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, Any]:
    status = main([*map(str, arguments), "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_rows_of_the_table(tmp_path, capsys):
    layout = write_plan(tmp_path, [SINGLE, DDP])
    write_launches(layout, SINGLE, rate=800)
    status, rows = say_json(capsys, "table", tmp_path)
    assert status == 0
    table = pd.read_csv(layout.table("csv"))
    assert [row["cell"] for row in rows] == [SINGLE["id"], DDP["id"]]
    assert list(rows[0]) == list(table.columns)
    assert rows[0]["throughput"] == table["throughput"][0]
    assert rows[1]["throughput"] is None


def test_a_folder_and_a_bundle_in_place_of_an_experiment(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    root = Path("results/small")
    layout = write_plan(root, [SINGLE, DDP])
    make_request(layout, SINGLE["id"], launches=6, cell_hash=SINGLE["hash"])
    write_launches(layout, SINGLE, rate=800, job_id=None)
    assert main(["publish", str(root)]) == 0
    capsys.readouterr()
    bundle = "bundle.tar.zst"
    (root / "results.tar.zst").rename(bundle)
    folder = say_json(capsys, "status", root, "--only", "strategy=single")
    packed = say_json(capsys, "status", bundle, "--only", "strategy=single")
    assert folder[0] == packed[0] == 0
    (state,) = packed[1]
    assert state["cell"] == SINGLE["id"]
    assert state["status"] == folder[1][0]["status"]
    assert state["rerun"] == f"rankbench rerun {SINGLE['id']}"
    assert str(root / state["log"]) == folder[1][0]["log"]

    assert main(["status", bundle, SINGLE["id"]]) == 0
    assert f"records          records/{SINGLE['id']}" in capsys.readouterr().out
    assert main(["status", bundle, "no.ne"]) == 2
    assert "no cell 'no.ne'" in capsys.readouterr().err
    for command in ("answer", "table"):
        assert say_json(capsys, command, bundle) == say_json(capsys, command, root)
        file = layout.table("csv").absolute()
        assert say_json(capsys, command, file) == say_json(capsys, command, root)
    assert main(["publish", bundle]) == 2
    assert "bundle.tar.zst is a bundle already" in capsys.readouterr().err
    assert main(["status", "other.tar.zst"]) == 2
    assert "other.tar.zst does not exist" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == [bundle, "results"]


def test_cells_that_were_not_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("local_profile").mkdir()
    Path("local_profile/site.yaml").write_text("device: cpu\n")
    Path("config.yaml").write_text(
        "name: small\nstrategy: [single, ddp]\nbackend: [gloo, nccl]\n"
        "topology: [1x1, 1x2]\nlaunches: 2\n"
    )
    status, found = say_json(
        capsys, "run", "-n", "--only", "strategy=ddp", "topology=1x2"
    )
    assert status == 0
    assert found["experiment"] == "small"
    gloo, nccl = found["cells"]
    assert gloo["fields"]["backend"] == "gloo"
    assert (gloo["unsupported"], gloo["launches_to_come"]) == (None, 2)
    assert "CUDA" in nccl["unsupported"]
    assert nccl["launches_to_come"] == 0

    status, states = say_json(capsys, "status")
    assert status == 0
    by_cell = {state["cell"]: state for state in states}
    assert by_cell[gloo["cell"]]["status"] == "not-run"
    assert by_cell[gloo["cell"]]["rerun"] == f"rankbench rerun {gloo['cell']}"
    assert by_cell[nccl["cell"]]["status"] == "unsupported"

    assert say_json(capsys, "rerun", "--failed") == (0, [])
    (state,) = say_json(capsys, "status", gloo["cell"])[1]
    assert (state["status"], state["records"]) == ("not-run", {})
