"""mpirun of Open MPI on one machine."""

from __future__ import annotations

from rankbench.launch.hostfiles import host_list
from rankbench.launch.launchers import Start, _open_mpi

NEEDS = {
    "program": "mpirun",
    "runtimes": ["process_group", "rpc", "horovod"],
    "backends": ["none", "gloo", "mpi", "nccl", "tensorpipe"],
}

read_exits = _open_mpi.read_exits
build_variables = _open_mpi.build_variables


def build_argv(start: Start) -> list[str]:
    return [
        start.python,
        "-m",
        "rankbench.rank.meeting",
        "mpirun",
        "-n",
        str(start.shape.ranks),
        "--host",
        host_list(start.slots),
        # Ranks pin themselves.
        "--bind-to",
        "none",
        *start.rank_argv,
    ]
