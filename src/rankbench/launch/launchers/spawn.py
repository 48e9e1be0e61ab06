"""torch.multiprocessing.spawn: one parent process, its children are the ranks."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rankbench.launch.launchers import Start

_FAILED = re.compile(r"^rank (\d+) ended with exit code (-?\d+)$", re.MULTILINE)


def build_argv(start: Start) -> list[str]:
    return [
        start.python,
        "-m",
        "rankbench.rank.spawn",
        f"--ranks={start.shape.ranks_per_node}",
        str(start.spec),
    ]


def read_exits(log: str) -> Mapping[int, int]:
    return {int(rank): int(code) for rank, code in _FAILED.findall(log)}
