"""mpiexec.hydra of Intel MPI: what Horovod over oneCCL is started by."""

from __future__ import annotations

from rankbench.launch.launchers import _intel_mpi, _ssh, rank_argv, slots_of
from rankbench.launch_spec import LaunchSpec

NEEDS = {
    "ssh": True,
    "program": "mpiexec.hydra",
    "runtimes": ["process_group", "rpc", "horovod"],
    "backends": ["none", "gloo", "mpi", "nccl", "ccl", "tensorpipe"],
}

read_exits = _intel_mpi.read_exits
build_variables = _intel_mpi.build_variables


def build_argv(spec: LaunchSpec) -> list[str]:
    return _ssh.build_argv(
        spec,
        [
            "mpiexec.hydra",
            "-n",
            str(spec.shape.ranks),
            "-ppn",
            str(spec.shape.ranks_per_node),
            "-hosts",
            ",".join(slots_of(spec)),
            *rank_argv(spec),
        ],
    )
