"""The environment of the ranks, which records and bundles show."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from factories import make_cell, make_shape, make_spec
from rankbench.launch.process.command import (
    build_environment,
    check_binds,
    find_settings,
)
from rankbench.launch_spec import SOURCE, LaunchOptions
from rankbench.matrix.site import OWN_VARIABLES

pytestmark = pytest.mark.unit

OURS = {
    "CUDA_DEVICE_ORDER",
    "OMP_NUM_THREADS",
    "PYTHONNOUSERSITE",
    "PYTHONPATH",
    "PYTHONSAFEPATH",
    "PYTHONUNBUFFERED",
    "PYTHONUTF8",
}
# Of a cell on GPUs.
ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"
LOG_FILES = {"NCCL_DEBUG_FILE": "/dev/null", "UCX_LOG_FILE": "/dev/null"}
LO = {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"}


def build(
    inherited: dict[str, str], nodes: int = 2, logs: bool = False, **changes: Any
) -> dict[str, str]:
    """The environment of two ranks on two hosts; with a GPU, nothing is hidden."""
    changes.setdefault("cell", make_cell(device="cuda"))
    shape = make_shape(2, nodes=nodes, ranks_per_node=2 // nodes)
    options = LaunchOptions(backend_logs=logs)
    return build_environment(
        make_spec(shape=shape, options=options, **changes), inherited
    )


def test_a_site_can_set_every_variable_but_ours():
    environment = build({}, nodes=1, env={"FI_PROVIDER": "efa"})
    assert environment.pop("FI_PROVIDER") == "efa"
    assert environment.pop(ALLOCATOR) == "expandable_segments:True"
    assert environment.keys() == OURS | LO
    assert environment.keys() <= OWN_VARIABLES.keys()


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_shell_site_or_cell_may_choose_how_gpu_memory_is_allocated(name):
    chosen = {name: "max_split_size_mb:512"}
    ways = [({}, {"env": chosen}), (chosen, {})]
    ways.append(({}, {"cell": make_cell(device="cuda", env=chosen)}))
    for shell, changes in ways:
        found = build(shell, **changes)
        assert {k: found[k] for k in found if k.endswith("ALLOC_CONF")} == chosen


GDR, UCX_GDR = "NCCL_NET_GDR_LEVEL", "UCX_IB_GPU_DIRECT_RDMA"


@pytest.mark.parametrize(
    ("cell", "inherited", "changes", "expected"),
    [
        # Segments of GPU memory do not grow where that does not help.
        ({"device": "cpu"}, {}, {}, {ALLOCATOR: None, "DS_ACCELERATOR": "cpu"}),
        ({"backend": "mpi"}, {}, {}, {ALLOCATOR: None}),
        # A cell counts before the site, the site before the shell.
        (
            {"env": {"NCCL_ALGO": "Tree"}},
            {"NCCL_ALGO": "Ring", "NCCL_MIN_CTAS": "4"},
            {"env": {"NCCL_ALGO": "CollNet", "FI_PROVIDER": "efa"}},
            {"NCCL_ALGO": "Tree", "NCCL_MIN_CTAS": "4", "FI_PROVIDER": "efa"},
        ),
        ({}, {"TMPDIR": "/t/x"}, {}, {"TMPDIR": "/t/x"}),
        ({}, {"TMPDIR": "/t/x"}, {"scratch": Path("/s/x")}, {"TMPDIR": "/s/x"}),
        (
            {},
            {"TMPDIR": "/t/x"},
            {"scratch": Path("/s/x"), "image": {"file": "i.sif"}},
            {"TMPDIR": "/s/x"},
        ),
        ({}, {"PYTHONPATH": "/somewhere"}, {}, {"PYTHONPATH": str(SOURCE)}),
        ({}, {"OMP_NUM_THREADS": "64"}, {"threads": 3}, {"OMP_NUM_THREADS": "3"}),
        (
            {"options": {"fusion_threshold_mb": 0.5}},
            *({}, {}),
            {"HOROVOD_FUSION_THRESHOLD": "524288"},
        ),
        # Loopback only where it reaches all ranks.
        ({}, {}, {"nodes": 1}, dict.fromkeys(LO, "lo")),
        ({}, {}, {"nodes": 2}, dict.fromkeys(LO)),
        ({}, {}, {"nodes": 1, "interface": "ib0"}, dict.fromkeys(LO, "lo")),
        ({}, {}, {"nodes": 2, "interface": "ib0"}, dict.fromkeys(LO, "ib0")),
        ({}, {"GLOO_SOCKET_IFNAME": "x"}, {"nodes": 1}, {"GLOO_SOCKET_IFNAME": "x"}),
        # Libraries log only on request, into the log of the rank; but NCCL always.
        ({}, {}, {}, {"NCCL_DEBUG": None, "UCX_LOG_LEVEL": None}),
        ({}, LOG_FILES, {}, LOG_FILES),
        (
            {},
            {**LOG_FILES, "NCCL_DEBUG": "WARN"},
            {"logs": True},
            {**dict.fromkeys(LOG_FILES), "NCCL_DEBUG": "INFO", "UCX_LOG_LEVEL": "info"},
        ),
        (
            {"backend": "nccl"},
            {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "x"},
            {},
            {
                "NCCL_DEBUG": "INFO",
                "NCCL_DEBUG_SUBSYS": "INIT,ENV,NET",
                **{"NCCL_DEBUG_FILE": None, "UCX_LOG_LEVEL": None},
            },
        ),
        # GPUDirect as asked for; else as the shell has it.
        ({"backend": "nccl", "gpudirect": "auto"}, {GDR: "PHB"}, {}, {GDR: "PHB"}),
        ({"backend": "nccl", "gpudirect": True}, {GDR: "PHB"}, {}, {GDR: "SYS"}),
        (
            {"backend": "nccl", "gpudirect": False},
            {GDR: "PHB", UCX_GDR: "try"},
            {},
            {GDR: "LOC", "NCCL_NET_GDR_READ": "0", UCX_GDR: "try"},
        ),
        (
            {"backend": "mpi", "gpudirect": "auto"},
            {UCX_GDR: "try"},
            {},
            {UCX_GDR: "try"},
        ),
        ({"backend": "mpi", "gpudirect": True}, {UCX_GDR: "try"}, {}, {UCX_GDR: "y"}),
        ({"backend": "mpi", "gpudirect": False}, {UCX_GDR: "try"}, {}, {UCX_GDR: "n"}),
    ],
)
def test_variables_of_a_launch(cell, inherited, changes, expected):
    """None: the variable is not set."""
    found = build(inherited, cell=make_cell(**{"device": "cuda", **cell}), **changes)
    assert {name: found.get(name) for name in expected} == expected


def test_a_bind_that_the_host_lacks_is_named(tmp_path):
    check_binds([str(tmp_path)])
    with pytest.raises(ValueError, match=r"has no .*/efa: correct binds in site.yaml"):
        check_binds([f"{tmp_path}/efa"])


@pytest.mark.parametrize(
    "name",
    [
        "AWS_SECRET_ACCESS_KEY",
        "GITHUB_TOKEN",
        "HF_TOKEN",
        "SSH_AUTH_SOCK",
        "LD_PRELOAD",
        "PYTHONSTARTUP",
        "PYTHONHASHSEED",
        "OMP_NUM_THREADS",
        "RANK",
        "WORLD_SIZE",
        "MASTER_ADDR",
        "SLURM_JOB_ID",
        "TOKEN_NCCL_",
        "path",
    ],
)
def test_is_kept_out(name):
    environment = build({name: "secret"})
    assert environment.keys() == OURS | {ALLOCATOR}
    assert "secret" not in environment.values()


@pytest.mark.parametrize(
    "name",
    [
        "PATH",
        "HOME",
        "LD_LIBRARY_PATH",
        "CUDA_VISIBLE_DEVICES",
        "NCCL_DEBUG",
        "UCX_TLS",
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "TORCHINDUCTOR_MAX_AUTOTUNE",
    ],
)
def test_is_passed_on(name):
    assert build({name: "value"})[name] == "value"
    # Launches are compared by what tunes libraries.
    tunes = name not in ("PATH", "HOME", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")
    assert (name in find_settings(make_spec(), {name: "value"})) == tunes


def test_it_is_the_same_for_the_same_input():
    names = ["PATH", "HOME", "NCCL_DEBUG"]
    one = build(dict.fromkeys(names, "1"))
    two = build(dict.fromkeys(reversed(names), "1"))
    assert list(one.items()) == list(two.items())


def test_it_starts_from_the_own_environment(monkeypatch):
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("SOME_PASSWORD", "secret")
    environment = build_environment(make_spec())
    assert environment["NCCL_DEBUG"] == "INFO"
    assert "SOME_PASSWORD" not in environment
    assert environment["PATH"] == os.environ["PATH"]
