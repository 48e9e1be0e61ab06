"""The transport between ranks, as the logs of libraries show it."""

from __future__ import annotations

from pathlib import Path

import pytest

import logs
from factories import read_pairs
from rankbench.launch.process import transport
from rankbench.launch.process.transport import join, read_log, read_logs
from rankbench.schema import load_yaml

pytestmark = pytest.mark.unit

FOLDER = Path(__file__).parents[1] / "real_logs"
TOLD = load_yaml(FOLDER / "transport.yaml")


@pytest.mark.parametrize("name", TOLD)
def test_a_log_tells_the_transport(name):
    assert read_log(getattr(logs, name.upper())) == TOLD[name]


@pytest.mark.parametrize(("said", "name"), read_pairs("channels.txt"))
def test_name_of_a_channel(said, name):
    line = f"node1:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via {said}\n"
    assert read_log(line)["nccl"]["transports"] == [name]


@pytest.mark.parametrize(
    ("channels", "found"),
    [
        ("24 coll channels, 24 collnet channels, 16 nvls channels, 32 p2p", ["NVLS"]),
        ("24 coll channels, 16 nvls channels, 32 p2p channels", ["NVLS"]),
        ("16 coll channels, 0 nvls channels, 16 p2p channels", []),
    ],
)
def test_switches_that_reduce(channels, found):
    log = f"{logs.NCCL_2_29_ONE_HOST}n1:7:9 [0] NCCL INFO {channels}\n"
    assert read_log(log)["nccl"]["transports"] == [*found, "P2P/CUMEM"]


def test_both_libraries_are_named():
    assert read_log(logs.NCCL_2_10 + logs.UCX_1_13).keys() == {"nccl", "ucx"}


@pytest.mark.parametrize("log", ["", "epoch 1\nselected ob1 of 3\n"])
def test_nothing_told(log):
    assert read_log(log) == {}


def test_logs_of_a_launch(tmp_path):
    """Ranks that agree stand together."""
    (tmp_path / "rank0.log").write_text(logs.UCX_1_13)
    (tmp_path / "rank1.log").write_bytes(b"\xff\xfe" + logs.UCX_1_13.encode())
    (tmp_path / "rank2.log").write_text("nothing of the kind\n")
    (tmp_path / "rank4.log").write_text(logs.NCCL_2_10)
    assert read_logs(tmp_path, 5) == [
        {"ranks": [0, 1], "libraries": TOLD["ucx_1_13"]},
        {"ranks": [4], "libraries": TOLD["nccl_2_10"]},
    ]


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
