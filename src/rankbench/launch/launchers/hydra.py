"""mpiexec.hydra of Intel MPI: what Horovod over oneCCL is started by."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rankbench.launch.launchers import names_of, rank_argv, ssh_argv
from rankbench.launch_spec import LaunchSpec

NEEDS = {
    "program": "mpiexec.hydra",
    "runtimes": ["process_group", "rpc", "horovod"],
    "backends": ["none", "gloo", "mpi", "nccl", "ccl", "tensorpipe"],
}

_KILLED = re.compile(r"RANK (\d+) PID .*\n.*KILLED BY SIGNAL: (\d+)")


def build_variables(spec: LaunchSpec) -> dict[str, str]:
    """Variables for mpiexec.hydra and its ranks."""
    variables = {
        # Ranks pin themselves.
        "I_MPI_PIN": "0",
        # When a rank dies, the launcher ends the others, which therefore report another
        # signal.
        "I_MPI_JOB_ABORT_SIGNAL": "15",
        # A second worker thread of oneCCL would need a core of its own.
        "CCL_WORKER_COUNT": "1",
    }
    if not spec.is_spread:
        # Ranks of one host use shared memory, and no ssh is needed to start them.
        variables |= {"I_MPI_FABRICS": "shm", "I_MPI_HYDRA_BOOTSTRAP": "fork"}
    else:
        variables["I_MPI_HYDRA_BOOTSTRAP"] = "ssh"
        if spec.interface:
            between = ("I_MPI_HYDRA_IFACE", "FI_TCP_IFACE")
            variables |= dict.fromkeys(between, spec.interface)
    if spec.shares_cores:
        # Otherwise a rank that waits keeps the core from the one that it waits for.
        variables["I_MPI_WAIT_MODE"] = "1"
    return variables


def build_argv(spec: LaunchSpec) -> list[str]:
    return ssh_argv(
        spec,
        [
            "mpiexec.hydra",
            "-n",
            str(spec.shape.ranks),
            "-ppn",
            str(spec.shape.ranks_per_node),
            "-hosts",
            ",".join(names_of(spec)),
            *rank_argv(spec),
        ],
    )


def read_exits(log: str) -> Mapping[int, int]:
    """Exit codes by rank: of those that a signal ended."""
    return {int(rank): -int(number) for rank, number in _KILLED.findall(log)}
