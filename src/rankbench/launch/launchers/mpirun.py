"""mpirun of Open MPI."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from rankbench.launch.launchers import host_list, rank_argv, ssh_argv
from rankbench.launch_spec import LaunchSpec

NEEDS = {
    "program": "mpirun",
    "runtimes": ["process_group", "rpc", "horovod"],
    "backends": ["none", "gloo", "mpi", "nccl", "tensorpipe"],
}

_KILLED = re.compile(r"noticed that process rank (\d+) .* exited on signal (\d+)")
_FAILED = re.compile(r"Process name: \[.*,(\d+)\]\s+Exit code:\s+(\d+)")


def build_variables(spec: LaunchSpec, *, root: bool | None = None) -> dict[str, str]:
    """Variables for mpirun and its ranks.

    Args:
        spec: what is to be started.
        root: whether it runs as root; None looks.
    """
    variables: dict[str, str] = {}
    # Ranks of one host use shared memory for data, and sockets for control messages.
    interface = spec.interface if spec.is_spread else "lo"
    if interface:
        variables |= {
            "OMPI_MCA_btl_tcp_if_include": interface,
            "OMPI_MCA_oob_tcp_if_include": interface,
        }
    if spec.shares_cores:
        # Otherwise a rank that waits keeps the core from the one that it waits for.
        variables["OMPI_MCA_mpi_yield_when_idle"] = "1"
    if os.geteuid() == 0 if root is None else root:
        variables |= {
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        }
    return variables


def build_argv(spec: LaunchSpec) -> list[str]:
    hosts = ["--host", host_list(spec)]
    if spec.is_spread:
        hosts = ["--hostfile", str(spec.hostfile)]
    return ssh_argv(
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


def read_exits(log: str) -> Mapping[int, int]:
    """Exit codes by rank, as far as mpirun tells: of the first that failed."""
    failed = {int(rank): int(code) for rank, code in _FAILED.findall(log)}
    return failed | {int(rank): -int(number) for rank, number in _KILLED.findall(log)}
