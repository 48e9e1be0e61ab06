"""mpirun of Open MPI."""

from __future__ import annotations

from rankbench.launch.launchers import Start, _open_mpi, _ssh
from rankbench.launch.launchers._hostfiles import host_list

NEEDS = {
    "ssh": True,
    "program": "mpirun",
    "runtimes": ["process_group", "rpc", "horovod"],
    "backends": ["none", "gloo", "mpi", "nccl", "tensorpipe"],
}

read_exits = _open_mpi.read_exits
build_variables = _open_mpi.build_variables


def build_argv(start: Start) -> list[str]:
    hosts = ["--host", host_list(start.slots)]
    if start.is_spread:
        hosts = ["--hostfile", str(start.hostfile)]
    return _ssh.build_argv(
        start,
        [
            "mpirun",
            "-n",
            str(start.shape.ranks),
            *hosts,
            # Ranks pin themselves.
            "--bind-to",
            "none",
            *start.rank_argv,
        ],
    )
