"""What holds for every launcher, and what each says of a rank that died."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import pytest

from factories import make_cell, make_shape, make_spec
from logs import (
    DEEPSPEED_KILLED,
    HOROVODRUN_FAILED,
    HOROVODRUN_KILLED,
    HYDRA_KILLED,
    MANUAL_KILLED,
    MPIRUN_FAILED,
    MPIRUN_KILLED,
    SPAWN_KILLED,
    SPAWN_RAISED,
    SRUN_FAILED,
    SRUN_KILLED,
    SRUN_OUT_OF_MEMORY,
    TORCHRUN_KILLED,
)
from rankbench.launch.launchers import (
    Launcher,
    find_launcher,
    horovodrun,
    host_list,
    hostfile,
    hydra,
    mpirun,
)
from rankbench.launch_spec import LaunchSpec
from rankbench.matrix.catalog import load_catalog

pytestmark = pytest.mark.contract

NAMES = load_catalog().launchers
SPEC = Path("/results/work/launch.json")


def make_launch(ranks: int, **changes: Any) -> LaunchSpec:
    values = {"directory": Path("/results"), "python": "/venv/python"}
    values |= {"shape": make_shape(ranks)} | changes
    cell = {k: values.pop(k) for k in ("init_method", "backend") if k in values}
    return make_spec(cell=make_cell(**cell), **values)


def argv_of(name: str, ranks: int, **changes) -> list[str]:
    return find_launcher(name).build_argv(make_launch(ranks, **changes))


@pytest.mark.parametrize("name", NAMES)
def test_command_or_hostfile_tells_the_number_of_ranks(name):
    commands = [argv_of(name, ranks) for ranks in (1, 2, 7)]
    for argv in commands:
        assert all(isinstance(word, str) and word for word in argv)
        assert argv[-1] == str(SPEC)
    if NAMES[name]["per"] == "rank":
        return  # The Slurm step tells each rank its place.
    _, two, seven = commands
    assert two != seven or f"--hostfile={SPEC.with_name('hostfile')}" in two


@pytest.mark.parametrize("name", NAMES)
def test_a_log_without_a_failure_has_no_exits(name):
    for log in ("", "all is well\n", "rank 1 ended\nexitcode: 1\n"):
        assert dict(find_launcher(name).read_exits(log)) == {}


@pytest.mark.parametrize("name", NAMES)
def test_functions_are_those_of_the_interface(name):
    launcher = find_launcher(name)
    for function in ("build_argv", "read_exits"):
        wanted = list(inspect.signature(getattr(Launcher, function)).parameters)[1:]
        found = inspect.signature(getattr(launcher, function)).parameters
        assert list(found) == wanted


@pytest.mark.parametrize("method", ["env", "tcp", "file"])
def test_ranks_by_hand_meet_as_asked(method):
    assert f"--init-method={method}" in argv_of("manual", 2, init_method=method)


@pytest.mark.parametrize(
    ("backend", "flag"),
    [("gloo", "--gloo"), ("nccl", "--gloo"), ("mpi", "--mpi"), ("ccl", "--mpi")],
)
def test_horovodrun_starts_ranks_by_what_connects_them(backend, flag):
    argv = argv_of("horovodrun", 2, backend=backend)
    assert {"--gloo", "--mpi"} & set(argv) == {flag}


def test_open_mpi_stays_on_the_interface_yields_shared_cores_and_serves_root():
    usual = mpirun.build_variables(make_launch(2), root=False)
    names = {"OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include"}
    assert usual == dict.fromkeys(names, "lo")
    shape = make_shape(2, nodes=2, ranks_per_node=1)
    spread = make_launch(2, shape=shape, hosts=("node1", "node2"))
    assert mpirun.build_variables(spread, root=False) == {}
    over = dataclasses.replace(spread, interface="ib0")
    assert set(mpirun.build_variables(over, root=False).values()) == {"ib0"}
    crowded = make_launch(2, marks=["oversubscribed"])
    assert mpirun.build_variables(crowded, root=False) == usual | {
        "OMPI_MCA_mpi_yield_when_idle": "1"
    }
    root = mpirun.build_variables(make_launch(2), root=True)
    assert root.keys() - usual.keys() == {
        "OMPI_ALLOW_RUN_AS_ROOT",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
    }


ON_ONE_HOST = {"I_MPI_FABRICS": "shm", "I_MPI_HYDRA_BOOTSTRAP": "fork"}


def test_intel_mpi_stays_in_the_memory_of_one_host_and_pins_no_rank():
    told = hydra.build_variables(make_launch(2))
    assert told["I_MPI_PIN"] == "0"
    assert told.items() > ON_ONE_HOST.items()
    shape = make_shape(2, nodes=2, ranks_per_node=1)
    across = hydra.build_variables(make_launch(2, shape=shape))
    assert across.keys() <= told.keys()
    kept = {k: told[k] for k in told.keys() - ON_ONE_HOST.keys()}
    assert across.items() >= kept.items()
    assert across["I_MPI_HYDRA_BOOTSTRAP"] == "ssh"
    shared = hydra.build_variables(make_launch(2, marks=["oversubscribed"]))
    assert shared == told | {"I_MPI_WAIT_MODE": "1"}


def test_horovodrun_tells_whichever_mpi_it_finds():
    spec = make_launch(2, backend="ccl")
    told = horovodrun.build_variables(spec)
    for mpi in (mpirun, hydra):
        assert told.items() > mpi.build_variables(spec).items()


@pytest.mark.parametrize(
    ("name", "log", "exits"),
    [
        ("torchrun", TORCHRUN_KILLED, {0: -15, 1: -9}),
        ("torch_launch", TORCHRUN_KILLED, {0: -15, 1: -9}),
        ("spawn", SPAWN_KILLED, {0: -15, 1: -9}),
        ("manual", MANUAL_KILLED, {1: -9}),
        ("spawn", SPAWN_RAISED, {}),
        ("mpirun", MPIRUN_KILLED, {1: -9}),
        ("mpirun", MPIRUN_FAILED, {1: 3}),
        ("horovodrun", HOROVODRUN_KILLED, {1: -9}),
        ("horovodrun", HOROVODRUN_FAILED, {0: -15, 1: 3}),
        ("horovodrun", MPIRUN_KILLED, {1: -9}),
        ("hydra", HYDRA_KILLED, {0: -15, 1: -9}),
        ("horovodrun", HYDRA_KILLED, {0: -15, 1: -9}),
        ("deepspeed", DEEPSPEED_KILLED, {}),
        ("srun", SRUN_KILLED, {0: 1, 1: -9}),
        ("srun", SRUN_FAILED, {0: 97, 1: 97, 3: 97, 2: -11}),
        ("srun", SRUN_OUT_OF_MEMORY, {1: -9}),
    ],
)
def test_exits_in_real_logs(name, log, exits):
    assert dict(find_launcher(name).read_exits(log)) == exits


def test_hosts_and_their_ranks_as_launchers_read_them():
    shape = make_shape(8, nodes=2, ranks_per_node=4)
    spread = make_launch(8, shape=shape, hosts=("node1", "node2.cluster"))
    assert hostfile(spread) == "node1 slots=4\nnode2.cluster slots=4\n"
    assert host_list(spread) == "node1:4,node2.cluster:4"
    # A host may know itself by another name than Slurm does.
    assert host_list(make_launch(1, hosts=("node1",))) == "localhost:1"
