"""Networks: what NCCL chose, in tables and comparisons; pairs that were measured."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rankbench.launch.job.network import check_network
from rankbench.launch.site import hosts as site_hosts
from rankbench.record import Layout, read_attempt
from rankbench.results.compare.sides import read_side
from rankbench.results.numbers.hardware import find_network
from unit.synthetic import (
    plan_one,
    read_rows,
    write_launches,
    write_tables,
)

pytestmark = pytest.mark.unit


def seen(*transports: str, network: str | None = None, direct: bool | None = None):
    nccl = {"network": network, "transports": transports, "gpudirect_rdma": direct}
    return {"ranks": [0], "libraries": {"nccl": nccl}}


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([seen("NET/IB/0/GDRDMA", "P2P/CUMEM", network="IB", direct=True)],
         "IB with GPUDirect"),
        ([seen("NET/Socket/0", network="Socket", direct=False)],
         "Socket without GPUDirect"),
        ([seen("NET/IB/0", network="IB", direct=False), seen("NET/IB/0", network="IB",
         direct=True)], "IB with GPUDirect; IB without GPUDirect"),
        ([seen("COLLNET/IB/0", "NVLS", network="IB", direct=True)],
         "IB with GPUDirect, SHARP, NVLS"),
        # On one host nothing crosses the network that it has found.
        ([seen("P2P/CUMEM", network="Socket")], "P2P/CUMEM"),
        ([{"ranks": [0], "libraries": {"gloo": {"transport": "tcp"}}}], None),
        ([], None),
    ],
)  # fmt: skip
def test_network_in_words(entries, words):
    assert find_network({"transport": {"backend": "nccl", "seen": entries}}) == words


def write(root: Path, *entries: dict[str, Any]) -> Layout:
    layout, planned = plan_one(root, "ddp", "2x1", backend="nccl", device="cuda")
    transport = {"backend": "nccl", "asked": {}, "seen": list(entries)}
    write_launches(layout, planned, transport=transport)
    write_tables(layout)
    return layout


def test_the_table_has_a_column_where_nccl_told(tmp_path):
    layout = write(tmp_path, seen("NET/Socket/0", network="Socket", direct=False))
    (row,) = read_rows(layout)
    assert row["network"] == "Socket without GPUDirect"
    assert "| network |" in layout.table("md").read_text()
    quiet = write(tmp_path / "quiet")
    assert "network" not in quiet.table("csv").read_text().splitlines()[0]
    assert "| network |" not in quiet.table("md").read_text()


def test_a_comparison_names_another_network(tmp_path):
    fast = write(tmp_path / "a", seen("NET/IB/0", network="IB", direct=True))
    slow = write(tmp_path / "b", seen("NET/Socket/0", network="Socket", direct=False))
    facts = [read_side(layout.root).facts["network"] for layout in (fast, slow)]
    assert facts == [("IB with GPUDirect",), ("Socket without GPUDirect",)]
    assert "network" not in read_side(write(tmp_path / "c").root).facts


def test_a_damaged_measurement_of_the_network_is_told_and_made_again(
    tmp_path, monkeypatch
):
    link = {"hosts": ["a", "b"], "gb_s": 1.0, "us": 20.0}
    monkeypatch.setattr(site_hosts, "measure_pairs", lambda *_: ([link], ""))
    layout, hosts = Layout(tmp_path), SimpleNamespace(names=("a", "b"))
    said: list[str] = []
    for _ in range(2):
        check_network(layout, {}, hosts, said.append)
    assert [one["network"] for one in read_attempt(layout.network)] == [[link]]
    (layout.network / "1/record.json").write_text("{")
    for _ in range(2):
        check_network(layout, {}, hosts, said.append)
    assert (layout.network / "2/record.json").exists()
    assert not (layout.network / "3").exists()
    assert sum("1/record.json is damaged" in line for line in said) == 2
