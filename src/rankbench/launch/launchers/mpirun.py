"""mpirun of Open MPI."""

from __future__ import annotations

from rankbench.launch.launchers import _open_mpi, _ssh, host_list, rank_argv
from rankbench.launch_spec import LaunchSpec

NEEDS = {
    "ssh": True,
    "program": "mpirun",
    "runtimes": ["process_group", "rpc", "horovod"],
    "backends": ["none", "gloo", "mpi", "nccl", "tensorpipe"],
}

read_exits = _open_mpi.read_exits
build_variables = _open_mpi.build_variables


def build_argv(spec: LaunchSpec) -> list[str]:
    hosts = ["--host", host_list(spec)]
    if spec.is_spread:
        hosts = ["--hostfile", str(spec.hostfile)]
    return _ssh.build_argv(
        spec,
        [
            "mpirun",
            "-n",
            str(spec.shape.ranks),
            *hosts,
            # Ranks pin themselves.
            "--bind-to",
            "none",
            *rank_argv(spec),
        ],
    )
