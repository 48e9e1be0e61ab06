"""srun of Slurm: a task for each rank, which reads its place from what Slurm sets."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping

from rankbench.launch.launchers import mpirun, rank_argv
from rankbench.launch_spec import LaunchSpec

NEEDS = {
    "per": "rank",
    "scheduler": "slurm",
    "runtimes": ["process_group", "rpc", "horovod"],
    "backends": ["none", "gloo", "mpi", "nccl", "tensorpipe"],
}

_ENDED = re.compile(r"^srun: error: \S+: tasks? ([\d,-]+): (.+?)\.?$", re.MULTILINE)
_CODE = re.compile(r"Exited with exit code (\d+)")
_SIGNALS = {signal.strsignal(number): number for number in signal.Signals}
_SIGNALS["Out Of Memory"] = signal.SIGKILL


def build_argv(spec: LaunchSpec) -> list[str]:
    return rank_argv(spec)


def build_variables(spec: LaunchSpec) -> dict[str, str]:
    return {
        **mpirun.build_variables(spec),
        "MASTER_ADDR": spec.address,
        "MASTER_PORT": str(spec.port),
    }


def read_exits(log: str) -> Mapping[int, int]:
    """Exit codes by rank: ``node2: tasks 1,3: Killed``, ``Exited with exit code 3``."""
    exits: dict[int, int] = {}
    for tasks, words in _ENDED.findall(log):
        name = words.removesuffix(" (core dumped)")
        if found := _CODE.match(words):
            code = int(found[1])
        elif name in _SIGNALS:
            code = -_SIGNALS[name]
        else:
            continue
        # Numbers of ``0-1,3``.
        for part in tasks.split(","):
            first, _, last = part.partition("-")
            exits |= dict.fromkeys(range(int(first), int(last or first) + 1), code)
    return exits
