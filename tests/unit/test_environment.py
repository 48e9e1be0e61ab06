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


@pytest.mark.parametrize(("device", "backend"), [("cpu", "gloo"), ("cuda", "mpi")])
def test_segments_do_not_grow_where_that_does_not_help(device, backend):
    found = build({}, cell=make_cell(device=device, backend=backend))
    assert ALLOCATOR not in found


def test_variables_of_a_cell_replace_those_of_site_and_shell():
    cell = make_cell(device="cuda", env={"NCCL_ALGO": "Tree", "NCCL_PROTO": "LL"})
    shell = {"NCCL_ALGO": "Ring", "NCCL_MIN_CTAS": "4"}
    found = build(shell, cell=cell, env={"NCCL_ALGO": "CollNet", "FI_PROVIDER": "efa"})
    assert found["NCCL_ALGO"] == "Tree"
    assert found["NCCL_PROTO"] == "LL"
    assert found["NCCL_MIN_CTAS"] == "4"
    assert found["FI_PROVIDER"] == "efa"


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


def test_scratch_is_where_ranks_put_what_they_need_for_a_while():
    given = {"TMPDIR": "/somewhere/tmp"}
    assert build(given)["TMPDIR"] == "/somewhere/tmp"
    for image in (None, {"file": "i.sif"}):
        found = build(given, scratch=Path("/scratch/x"), image=image)
        assert found["TMPDIR"] == "/scratch/x"


def test_python_path_is_ours_alone():
    environment = build({"PYTHONPATH": "/somewhere"})
    assert environment["PYTHONPATH"] == str(SOURCE)
    assert (SOURCE / "rankbench" / "rank" / "__main__.py").exists()


def test_threads_are_those_of_the_cell():
    assert build({"OMP_NUM_THREADS": "64"}, threads=3)["OMP_NUM_THREADS"] == "3"


def test_libraries_are_told_what_only_the_environment_can_tell_them():
    horovod = make_cell(options={"fusion_threshold_mb": 0.5}, device="cuda")
    assert build({}, cell=horovod)["HOROVOD_FUSION_THRESHOLD"] == "524288"
    assert build({}, cell=make_cell(device="cpu"))["DS_ACCELERATOR"] == "cpu"


def test_loopback_only_where_it_reaches_all_ranks():
    one, two = build({}, nodes=1), build({}, nodes=2)
    assert {key for key, value in one.items() if value == "lo"} == LO
    assert not LO & two.keys()


def test_the_interface_of_the_site_leads_to_other_hosts():
    def told(nodes: int) -> set[str]:
        given = build({}, nodes=nodes, interface="ib0")
        return {given[name] for name in LO}

    assert told(nodes=2) == {"ib0"}
    assert told(nodes=1) == {"lo"}


def test_a_chosen_interface_is_kept():
    assert build({"GLOO_SOCKET_IFNAME": "ib0"}, nodes=1)["GLOO_SOCKET_IFNAME"] == "ib0"
    assert build({"NCCL_SOCKET_IFNAME": "ib0"})["NCCL_SOCKET_IFNAME"] == "ib0"


def test_libraries_log_only_on_request():
    quiet, telling = build({}), build({}, logs=True)
    assert quiet.keys() == OURS | {ALLOCATOR}
    asked = telling.keys() - quiet.keys()
    assert {"NCCL_DEBUG", "UCX_LOG_LEVEL"} <= asked
    assert telling["NCCL_DEBUG"] == "INFO"


@pytest.mark.parametrize(
    ("backend", "asked", "name", "value"),
    [
        ("nccl", "auto", "NCCL_NET_GDR_LEVEL", "PHB"),
        ("nccl", True, "NCCL_NET_GDR_LEVEL", "SYS"),
        ("nccl", False, "NCCL_NET_GDR_LEVEL", "LOC"),
        ("nccl", False, "NCCL_NET_GDR_READ", "0"),
        ("nccl", False, "UCX_IB_GPU_DIRECT_RDMA", "try"),
        ("mpi", "auto", "UCX_IB_GPU_DIRECT_RDMA", "try"),
        ("mpi", True, "UCX_IB_GPU_DIRECT_RDMA", "y"),
        ("mpi", False, "UCX_IB_GPU_DIRECT_RDMA", "n"),
    ],
)
def test_gpudirect_as_asked_for(backend, asked, name, value):
    cell = make_cell(device="cuda", backend=backend, gpudirect=asked)
    environment = build(
        {"NCCL_NET_GDR_LEVEL": "PHB", "UCX_IB_GPU_DIRECT_RDMA": "try"}, cell=cell
    )
    assert environment[name] == value


def test_what_libraries_log_goes_into_the_log_of_the_rank():
    elsewhere = {"NCCL_DEBUG_FILE": "/dev/null", "UCX_LOG_FILE": "/dev/null"}
    assert elsewhere.keys() <= build(elsewhere).keys()
    assert not elsewhere.keys() & build(elsewhere, logs=True).keys()
    assert build({"NCCL_DEBUG": "WARN"}, logs=True)["NCCL_DEBUG"] == "INFO"


def test_nccl_always_tells_which_network_it_chose():
    given = {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "/dev/null"}
    environment = build(given, cell=make_cell(device="cuda", backend="nccl"))
    assert environment["NCCL_DEBUG"] == "INFO"
    assert "NET" in environment["NCCL_DEBUG_SUBSYS"]
    assert "NCCL_DEBUG_FILE" not in environment
    assert "UCX_LOG_LEVEL" not in environment


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
