"""horovodrun: over its own gloo, or through the mpirun that it finds."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rankbench.launch.launchers import Start, _intel_mpi, _open_mpi, _ssh
from rankbench.launch.launchers._hostfiles import host_list

NEEDS = {
    "ssh": True,
    "program": "horovodrun",
    "runtimes": ["process_group", "rpc", "horovod"],
    "backends": ["none", "gloo", "mpi", "nccl", "ccl", "tensorpipe"],
}

_FAILED = re.compile(r"^Process (\d+) exit with status code (\d+)\.$", re.MULTILINE)


def build_variables(start: Start) -> dict[str, str]:
    # Each of the two controllers ignores the options of the other.
    return _open_mpi.build_variables(start) | _intel_mpi.build_variables(start)


def build_argv(start: Start) -> list[str]:
    # MPI also starts the ranks of oneCCL.
    through_mpi = start.backend in ("mpi", "ccl")
    # Without an interface, horovodrun searches for one that all hosts have.
    interface = ["--network-interfaces", start.interface] if start.interface else []
    return _ssh.build_argv(
        start,
        [
            start.python,
            "-m",
            "horovod.runner.launch",
            "--num-proc",
            str(start.shape.ranks),
            "--hosts",
            host_list(start.slots),
            *(interface if start.is_spread else []),
            "--mpi" if through_mpi else "--gloo",
            # horovodrun would cache facts about hosts in the home directory for an
            # hour.
            "--disable-cache",
            *start.rank_argv,
        ],
    )


def read_exits(log: str) -> Mapping[int, int]:
    """Exit codes by rank; a shell runs each, and calls signal N exit code 128+N."""
    codes = {int(rank): int(code) for rank, code in _FAILED.findall(log)}
    signals = {rank: 128 - code for rank, code in codes.items() if code > 128}
    told = {**_open_mpi.read_exits(log), **_intel_mpi.read_exits(log)}
    return {**told, **codes, **signals}
