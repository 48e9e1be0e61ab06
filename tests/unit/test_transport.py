"""The transport between ranks, as the logs of libraries show it."""

from __future__ import annotations

from pathlib import Path

import pytest

import logs
from rankbench.launch.process import transport
from rankbench.launch.process.transport import group, join, read_log, read_logs
from rankbench.schema import load_yaml

pytestmark = pytest.mark.unit

FOLDER = Path(__file__).parents[1] / "real_logs"
TOLD = load_yaml(FOLDER / "transport.yaml")


@pytest.mark.parametrize("name", TOLD)
def test_a_log_tells_the_transport(name):
    assert read_log(getattr(logs, name.upper())) == TOLD[name]


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("direct shared memory", "SHM/direct"),
        ("SHM/CE/CE", "SHM/CE/CE"),
        ("P2P/direct pointer", "P2P/direct pointer"),
        ("P2P/direct pointer/read", "P2P/direct pointer/read"),
        ("P2P/indirect/3[1b000]", "P2P/indirect"),
        ("P2P/IPC comm 0x55cd1a0bf930 nRanks 02", "P2P/IPC"),
        ("NET/IBext_v8/2/GDRDMA", "NET/IBext_v8/2/GDRDMA"),
        ("NET/IB/2(3)/GDRDMA/Shared", "NET/IB/2/GDRDMA"),
    ],
)
def test_name_of_a_channel(said, name):
    line = f"node1:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via {said}\n"
    assert read_log(line)["nccl"]["transports"] == [name]


def test_interfaces_of_a_plugin_for_the_same_adapters():
    log = logs.NCCL_2_10.replace("network IB", "network IBext_v8")
    assert read_log(log)["nccl"]["interfaces"] == ["mlx5_0:1/IB", "mlx5_1:1/IB"]


def test_both_libraries_are_named():
    assert read_log(logs.NCCL_2_10 + logs.UCX_1_13).keys() == {"nccl", "ucx"}


@pytest.mark.parametrize("log", ["", "epoch 1\nselected ob1 of 3\n"])
def test_nothing_told(log):
    assert read_log(log) == {}


def test_ranks_that_agree_stand_together():
    texts = [logs.NCCL_2_29_ONE_HOST, logs.NCCL_2_29_OTHER_RANK, logs.NCCL_2_29_SOCKET]
    found = {rank: read_log(text) for rank, text in enumerate(texts)}
    groups = group(found)
    # Only one rank printed the version, which is that of all ranks.
    version = {"version": "2.29.7+cuda13.0"}
    other = {"nccl": TOLD["nccl_2_29_socket"]["nccl"] | version}
    assert groups == [
        {"ranks": [0, 1], "libraries": TOLD["nccl_2_29_one_host"]},
        {"ranks": [2], "libraries": other},
    ]


def test_ranks_with_different_versions_differ():
    newer = logs.NCCL_2_29_ONE_HOST.replace("2.29.7", "2.29.8")
    found = {0: read_log(logs.NCCL_2_29_ONE_HOST), 1: read_log(newer)}
    assert [one["ranks"] for one in group(found)] == [[0], [1]]


def test_logs_of_a_launch(tmp_path):
    (tmp_path / "rank0.log").write_text(logs.UCX_1_13)
    (tmp_path / "rank1.log").write_bytes(b"\xff\xfe" + logs.UCX_1_13.encode())
    (tmp_path / "rank2.log").write_text("nothing of the kind\n")
    told = {"ranks": [0, 1], "libraries": TOLD["ucx_1_13"]}
    assert read_logs(tmp_path, 4) == [told]


def test_a_huge_log_is_not_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(transport, "READ_AT_MOST", 100)
    (tmp_path / "rank0.log").write_text("x" * 99 + "\n" + logs.UCX_1_13)
    assert read_logs(tmp_path, 1) == []


def test_joined_with_what_was_asked_for():
    asked = {"backend": "nccl", "asked": {"NCCL_DEBUG": "INFO"}}
    seen = [{"ranks": [0], "libraries": {}}]
    assert join(asked, seen) == asked | {"seen": seen}
    assert join(asked, []) == asked | {"seen": []}
    assert join(None, []) is None
    assert join(None, seen) == {"backend": "none", "asked": {}, "seen": seen}
