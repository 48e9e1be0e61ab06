"""srun of Slurm: a task for each rank, which reads its place from what Slurm sets."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping

from rankbench.launch.launchers import _open_mpi, rank_argv
from rankbench.launch_spec import LaunchSpec

NEEDS = {
    "per": "rank",
    "scheduler": "slurm",
    "runtimes": ["process_group", "rpc", "horovod"],
    "backends": ["none", "gloo", "mpi", "nccl", "tensorpipe"],
}

_ENDED = re.compile(r"^srun: error: \S+: tasks? ([\d,-]+): (.+?)\.?$", re.MULTILINE)
_CODE = re.compile(r"Exited with exit code (\d+)")
_SIGNALS = {
    signal.strsignal(number): number
    for number in (
        signal.SIGKILL,
        signal.SIGTERM,
        signal.SIGSEGV,
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGINT,
    )
}


def build_argv(spec: LaunchSpec) -> list[str]:
    return rank_argv(spec)


def build_variables(spec: LaunchSpec) -> dict[str, str]:
    return {
        **_open_mpi.build_variables(spec),
        "MASTER_ADDR": spec.address,
        "MASTER_PORT": str(spec.port),
    }


def read_exits(log: str) -> Mapping[int, int]:
    """Exit codes by rank: ``node2: tasks 1,3: Killed``, ``Exited with exit code 3``."""
    exits: dict[int, int] = {}
    for tasks, words in _ENDED.findall(log):
        code = _read_code(words)
        if code is not None:
            exits |= dict.fromkeys(_expand(tasks), code)
    return exits


def _read_code(words: str) -> int | None:
    if found := _CODE.match(words):
        return int(found[1])
    if words == "Out Of Memory":
        return -signal.SIGKILL
    name = words.removesuffix(" (core dumped)")
    return -_SIGNALS[name] if name in _SIGNALS else None


def _expand(tasks: str) -> list[int]:
    """Numbers of ``0-1,3``."""
    found: list[int] = []
    for part in tasks.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found
