"""Diagnostics: launches, scatter, training, ranks, DDP's timers and the machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankbench.record import Layout
from unit.synthetic import (
    make_cell,
    plan_cell,
    read_rows,
    write_launch,
    write_plan,
    write_tables,
)

pytestmark = pytest.mark.unit

DDP = plan_cell(make_cell("ddp", "1x2"))
Table = list[dict[str, str]]


def read_tables(layout: Layout) -> dict[str, Table]:
    """Title -> rows of the table, from diagnostics.csv."""
    write_tables(layout)
    tables: dict[str, dict[str, dict[str, str]]] = {}
    for row in read_rows(layout, "diagnostics"):
        rows = tables.setdefault(row["table"], {})
        fields = rows.setdefault(row["row"], {"cell": row["cell"]})
        fields[row["column"]] = row["value"]
    return {title: list(rows.values()) for title, rows in tables.items()}


def edit(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = directory / "record.json"
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))


def write_ddp(root: Path, *changes: Callable[[dict[str, Any]], object]) -> Layout:
    """One cell, and a launch for each change of its record."""
    layout = write_plan(root, [DDP])
    for number, change in enumerate(changes, start=1):
        edit(write_launch(layout, DDP, number, wanted=len(changes)), change)
    return layout


def test_launches_of_all_cells_stand_in_the_order_of_time(tmp_path):
    single = plan_cell(make_cell("single"))
    layout = write_plan(tmp_path, [single, DDP], launches=2)
    for number, second in ((1, 3), (2, 1)):
        started = f"2026-11-22T00:00:0{second}+00:00"
        options = {"rate": 800 + second, "started": started}
        write_launch(layout, single, number, wanted=2, **options)
    write_launch(layout, DDP, 1, wanted=1, started="2026-11-22T00:00:02+00:00")
    rows = read_tables(layout)["Launches"]
    assert [(row["cell"], row["launch"]) for row in rows] == [
        (single["id"], "2"),
        (DDP["id"], "1"),
        (single["id"], "1"),
    ]
    assert rows[0]["throughput (samples/s)"] == "801"


def test_between_and_within_launches_stand_apart(tmp_path):
    layout = write_plan(tmp_path, [DDP])
    for number, rate in enumerate((780, 790, 800, 800, 810, 820), start=1):
        write_launch(layout, DDP, number, rate=rate)
    (row,) = read_tables(layout)["Scatter"]
    # The quartiles are 792.5 and 807.5 around 800; all steps of a launch are equal.
    assert float(row["between (%)"]) == pytest.approx(1.875)
    assert float(row["within (%)"]) == pytest.approx(0, abs=1e-9)
    assert (row["launches"], row["steady"]) == ("6", "6/6")


def test_training_is_a_mean_over_launches(tmp_path):
    def change(number: int) -> Callable[[dict[str, Any]], object]:
        def apply(record: dict[str, Any]) -> None:
            record["loss"] = {"first": 2.0, "last": number / 10}
            record["accuracy"]["per_class"] = [0.5, None, number / 10]
            slow, fast = record["ranks"]
            slow["epochs_s"], fast["epochs_s"] = [3.0 + number, 1.0], [3.0, 2.0]

        return apply

    (row,) = read_tables(write_ddp(tmp_path, *map(change, range(1, 7))))["Training"]
    assert row["first epoch (s)"] == "6.5 [4.537, 8.463]"
    assert row["later epochs (s)"] == "2 [2, 2]"
    assert row["last loss"] == row["class 2"] == "0.35 [0.1537, 0.5463]"
    assert "class 1" not in row
    assert row["accuracy"] == "0.97 [0.97, 0.97]"
    assert "busiest expert" not in row


def test_the_load_of_the_busiest_expert_is_that_of_all_ranks(tmp_path):
    """A block may be on both ranks, or as a stage on one of them."""

    def route(record: dict[str, Any]) -> None:
        first, second = record["ranks"]
        first["details"] = {"routed": {"block1": [6, 0], "block2": [4, 4]}}
        second["details"] = {"routed": {"block1": [0, 2], "block3": [0, 8]}}

    (row,) = read_tables(write_ddp(tmp_path, route))["Training"]
    # 1.5, 1 and 2 times an equal share.
    assert row["busiest expert"] == "1.5"


def test_utilisation_is_a_mean_over_launches(tmp_path):
    def change(cpu: list[float], gpu: list[Any]) -> Callable[[dict[str, Any]], object]:
        def apply(record: dict[str, Any]) -> None:
            for rank, share in zip(record["ranks"], cpu, strict=True):
                rank["cpu_utilisation"] = share
            record["devices"] = [{"utilisation_mean": mean} for mean in gpu]

        return apply

    changes = change([1.0, 0.5], [0.9, None]), change([0.9, 0.7], [0.8, None])
    (row,) = read_tables(write_ddp(tmp_path, *changes))["Ranks"]
    assert row["CPU of each rank"] == "95 %, 60 %"
    assert row["GPU of each device"] == "85 %, ?"
    assert row["memory of each rank (MiB)"] == "350, 351"


NIC = {"name": "eth0", "driver": "mlx5_core", "model": "15b3:1017", "gbit_s": 25.0}
HOST = {
    "cpu": "Example CPU",
    "cores": 32,
    "memory_gib": 251.7,
    "kernel": "6.1",
    "os": "Example Linux 12",
    "nics": [NIC],
    "gpus": [{"name": "Example GPU", "memory_gib": 79.6}] * 2,
    "gpu_links": ["NV12"],
    "gpu_driver": "550.54.15",
}


def test_hosts_and_versions(tmp_path):
    old = {"host": "b", "gpus": [], **{k: HOST[k] for k in ("cpu", "cores", "kernel")}}
    hosts = [{"host": "a", **HOST}, {**old, "memory_gib": 251.7}]
    layout = write_ddp(tmp_path, lambda record: record.update(hosts=hosts))
    rows = read_tables(layout)["Environment"]
    assert list(rows[0])[1:] == ["servers"]
    found = {name: value for row in rows for name, value in list(row.items())[1:]}
    assert found["servers"] == "2"
    assert found["CPU"] == "Example CPU, 32 cores"
    nic = "1 x eth0 (15b3:1017, driver mlx5_core, 25 Gbit/s)"
    assert found["network cards"] == f"{nic} (1 host); none (1 host)"
    assert found["GPUs"] == "2 x Example GPU, 80 GiB (1 host); none (1 host)"
    assert found["GPU driver"] == "550.54.15 (1 host); none (1 host)"
    assert (found["PyTorch"], found["NCCL"]) == ("2.13.0", "none")
    assert found["images"] == "none: native"


def test_files_go_with_the_last_row_that_is_ok(tmp_path):
    layout = write_ddp(tmp_path, lambda record: None)
    write_tables(layout)
    write_launch(layout, DDP, attempt=2, wanted=1, status="crashed", reason="no")
    assert layout.section("diagnostics").exists()
    write_tables(layout)
    assert not list(tmp_path.glob("diagnostics.*"))
