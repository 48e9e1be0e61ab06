"""Every command has help, and can print JSON."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from rankbench.cli import build_parser, main
from unit.synthetic import make_cell, plan_cell, write_launches, write_plan

pytestmark = pytest.mark.unit


def find_commands() -> dict[str, argparse.ArgumentParser]:
    (action,) = (
        action
        for action in build_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    return dict(action.choices)


COMMANDS = find_commands()
SINGLE = plan_cell(make_cell("single"))
DDP = plan_cell(make_cell("ddp", "1x2"))


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_of_the_help_can_be_typed(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert COMMANDS[name].description
    text, _, end = capsys.readouterr().out.partition("exit status: 0")
    assert end
    text = text[text.index("examples:\n") :]
    title, *examples = text.strip().splitlines()
    assert title == "examples:"
    for line in examples:
        program, *arguments = shlex.split(line.partition("|")[0])
        assert program == "rankbench"
        assert arguments[0] == name
        build_parser().parse_args(arguments)
    assert any("--json" in line for line in examples) or name == "rerun"
    assert build_parser().parse_args([*arguments, "--json"]).json


def say_json(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, Any]:
    status = main([*map(str, arguments), "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_rows_of_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layout = write_plan(tmp_path, [SINGLE, DDP])
    write_launches(layout, SINGLE, rate=800)
    status, rows = say_json(capsys, "table", "--results", tmp_path)
    assert status == 0
    table = pd.read_csv(layout.table("csv"))
    assert [row["cell"] for row in rows] == [SINGLE["id"], DDP["id"]]
    assert list(rows[0]) == list(table.columns)
    assert rows[0]["throughput"] == table["throughput"][0]
    assert rows[1]["throughput"] is None


def test_cells_that_were_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("local_profile").mkdir()
    Path("local_profile/site.yaml").write_text("device: cpu\n")
    Path("config.yaml").write_text(
        "name: small\nstrategy: [single, ddp]\nbackend: [gloo, nccl]\n"
        "topology: [1x1, 1x2]\nlaunches: 2\n"
    )
    status, found = say_json(capsys, "cells", "--only", "strategy=ddp", "topology=1x2")
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
    assert main(["show", gloo["cell"], "--json"]) == 2
    assert f"{gloo['cell']} has no record yet" in capsys.readouterr().err
