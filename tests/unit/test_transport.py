"""The transport between ranks, as the logs of libraries show it."""

from __future__ import annotations

from typing import Any

import pytest

import logs
from rankbench.launch.process import transport
from rankbench.launch.process.transport import group, join, read_log, read_logs

pytestmark = pytest.mark.unit

NCCL: dict[str, dict[str, Any]] = {
    logs.NCCL_2_10: {
        "version": "2.10.3+cuda11.3",
        "network": "IB",
        "interfaces": ["mlx5_0:1/IB", "mlx5_1:1/IB"],
        "transports": ["NET/IB/0", "NET/IB/1/GDRDMA", "SHM/direct"],
        "gpudirect_possible": None,
        "gpudirect_rdma": True,
    },
    logs.NCCL_2_21_NO_MODULE: {
        "version": None,
        "network": "IB",
        "interfaces": ["mlx5_0:1/RoCE", "mlx5_1:1/RoCE"],
        "transports": ["NET/IB/0", "NET/IB/1", "P2P/CUMEM/read", "SHM/direct/direct"],
        "gpudirect_possible": False,
        "gpudirect_rdma": False,
    },
    logs.NCCL_2_29_ONE_HOST: {
        "version": "2.29.7+cuda13.0",
        "network": "Socket",
        "interfaces": ["lo"],
        "transports": ["P2P/CUMEM"],
        "gpudirect_possible": None,
        "gpudirect_rdma": None,
    },
    logs.NCCL_2_29_SOCKET: {
        "version": None,
        "network": "Socket",
        "interfaces": ["eth0", "eth1"],
        "transports": ["NET/Socket/0"],
        "gpudirect_possible": None,
        "gpudirect_rdma": False,
    },
    logs.NCCL_PLUGIN: {
        "version": "2.26.2+cuda12.8",
        "network": "AWS Libfabric",
        "interfaces": None,
        "transports": ["NET/AWS Libfabric/0/GDRDMA(PCI)"],
        "gpudirect_possible": True,
        "gpudirect_rdma": True,
    },
}


@pytest.mark.parametrize("log", NCCL)
def test_nccl(log):
    assert read_log(log) == {"nccl": NCCL[log]}


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


def test_ucx():
    told = {"version": "1.13.1", "transports": ["cma/memory", "sysv/memory"]}
    unknown = {"gpu_aware": None, "gpudirect_rdma": None}
    assert read_log(logs.UCX_1_13) == {"ucx": told | unknown}
    from_host = {"gpu_aware": False, "gpudirect_rdma": None}
    assert read_log(logs.UCX_1_13_TABLES) == {"ucx": told | from_host}


@pytest.mark.parametrize(
    ("log", "direct"), [(logs.UCX_1_18_GPU, True), (logs.UCX_1_18_STAGED, False)]
)
def test_ucx_from_gpu_memory(log, direct):
    assert read_log(log)["ucx"] == {
        "version": "1.18.0",
        "transports": ["cuda_ipc/cuda", "rc_mlx5/mlx5_0:1"],
        "gpu_aware": True,
        "gpudirect_rdma": direct,
    }


@pytest.mark.parametrize(
    ("log", "facts"),
    [
        (logs.OPENMPI_OB1, {"pml": "ob1", "mtl": None, "btls": ["tcp", "vader"]}),
        (logs.OPENMPI_UCX, {"pml": "ucx", "mtl": None, "btls": []}),
        (logs.OPENMPI_CM, {"pml": "cm", "mtl": "ofi", "btls": []}),
    ],
)
def test_openmpi(log, facts):
    assert read_log(log) == {"openmpi": facts}


def test_openmpi_over_ucx_names_both():
    assert read_log(logs.OPENMPI_UCX + logs.UCX_1_13).keys() == {"openmpi", "ucx"}


def test_gloo():
    assert read_log(logs.GLOO) == {"gloo": {"transport": "tcp"}}


def test_ccl():
    assert read_log(logs.CCL) == {
        "ccl": {
            "version": "Gold-2021.15.2",
            "transport": "ofi",
            "provider": "tcp",
            "interface": "tcp:eth0",
            "gpu_aware": False,
        }
    }


@pytest.mark.parametrize(
    "log",
    ["", "epoch 1\nselected ob1 of 3\n", logs.NCCL_WARN, logs.CCL_OTHER_RANK],
)
def test_nothing_told(log):
    assert read_log(log) == {}


def test_ranks_that_agree_stand_together():
    texts = [logs.NCCL_2_29_ONE_HOST, logs.NCCL_2_29_OTHER_RANK, logs.NCCL_2_29_SOCKET]
    found = {rank: read_log(text) for rank, text in enumerate(texts)}
    groups = group(found)
    # Only one rank printed the version, which is that of all ranks.
    version = {"version": "2.29.7+cuda13.0"}
    assert groups == [
        {"ranks": [0, 1], "libraries": {"nccl": NCCL[logs.NCCL_2_29_ONE_HOST]}},
        {
            "ranks": [2],
            "libraries": {"nccl": NCCL[logs.NCCL_2_29_SOCKET] | version},
        },
    ]


def test_ranks_with_different_versions_differ():
    newer = logs.NCCL_2_29_ONE_HOST.replace("2.29.7", "2.29.8")
    found = {0: read_log(logs.NCCL_2_29_ONE_HOST), 1: read_log(newer)}
    assert [one["ranks"] for one in group(found)] == [[0], [1]]


def test_logs_of_a_launch(tmp_path):
    (tmp_path / "rank0.log").write_text(logs.GLOO)
    (tmp_path / "rank1.log").write_bytes(b"\xff\xfe" + logs.GLOO.encode())
    (tmp_path / "rank2.log").write_text("nothing of the kind\n")
    gloo = {"gloo": {"transport": "tcp"}}
    assert read_logs(tmp_path, 4) == [{"ranks": [0, 1], "libraries": gloo}]


def test_a_huge_log_is_not_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(transport, "READ_AT_MOST", 100)
    (tmp_path / "rank0.log").write_text("x" * 99 + "\n" + logs.GLOO)
    assert read_logs(tmp_path, 1) == []


def test_joined_with_what_was_asked_for():
    asked = {"backend": "nccl", "asked": {"NCCL_DEBUG": "INFO"}}
    seen = [{"ranks": [0], "libraries": {}}]
    assert join(asked, seen) == asked | {"seen": seen}
    assert join(asked, []) == asked | {"seen": []}
    assert join(None, []) is None
    assert join(None, seen) == {"backend": "none", "asked": {}, "seen": seen}
