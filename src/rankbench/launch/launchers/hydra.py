"""mpiexec.hydra of Intel MPI: what Horovod over oneCCL is started by."""

from __future__ import annotations

from rankbench.launch.launchers import Start, _intel_mpi, _ssh

NEEDS = {
    "ssh": True,
    "program": "mpiexec.hydra",
    "runtimes": ["process_group", "rpc", "horovod"],
    "backends": ["none", "gloo", "mpi", "nccl", "ccl", "tensorpipe"],
}

read_exits = _intel_mpi.read_exits
build_variables = _intel_mpi.build_variables


def build_argv(start: Start) -> list[str]:
    return _ssh.build_argv(
        start,
        [
            "mpiexec.hydra",
            "-n",
            str(start.shape.ranks),
            "-ppn",
            str(start.shape.ranks_per_node),
            "-hosts",
            ",".join(start.slots),
            *start.rank_argv,
        ],
    )
