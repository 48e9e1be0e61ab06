"""horovodrun: over its own gloo, or through the mpirun that it finds."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rankbench.launch.launchers import host_list, hydra, mpirun, rank_argv, ssh_argv
from rankbench.launch_spec import LaunchSpec

NEEDS = {
    "program": "horovodrun",
    "runtimes": ["process_group", "rpc", "horovod"],
    "backends": ["none", "gloo", "mpi", "nccl", "ccl", "tensorpipe"],
}

_FAILED = re.compile(r"^Process (\d+) exit with status code (\d+)\.$", re.MULTILINE)


def build_variables(spec: LaunchSpec) -> dict[str, str]:
    # Each of the two controllers ignores the options of the other.
    return mpirun.build_variables(spec) | hydra.build_variables(spec)


def build_argv(spec: LaunchSpec) -> list[str]:
    # MPI also starts the ranks of oneCCL.
    through_mpi = spec.cell.backend in ("mpi", "ccl")
    # Without an interface, horovodrun searches for one that all hosts have.
    interface = ["--network-interfaces", spec.interface] if spec.interface else []
    return ssh_argv(
        spec,
        [
            spec.python,
            "-m",
            "horovod.runner.launch",
            "--num-proc",
            str(spec.shape.ranks),
            "--hosts",
            host_list(spec),
            *(interface if spec.is_spread else []),
            "--mpi" if through_mpi else "--gloo",
            # horovodrun would cache facts about hosts in the home directory for an
            # hour.
            "--disable-cache",
            *rank_argv(spec),
        ],
    )


def read_exits(log: str) -> Mapping[int, int]:
    """Exit codes by rank; a shell runs each, and calls signal N exit code 128+N."""
    codes = {int(rank): int(code) for rank, code in _FAILED.findall(log)}
    signals = {rank: 128 - code for rank, code in codes.items() if code > 128}
    told = {**mpirun.read_exits(log), **hydra.read_exits(log)}
    return {**told, **codes, **signals}
