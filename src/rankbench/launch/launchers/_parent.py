"""What manual and spawn share: a parent of ranks that is our own."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rankbench.launch.launchers import Start

_FAILED = re.compile(r"^rank (\d+) ended with exit code (-?\d+)$", re.MULTILINE)


def build_argv(module: str, start: Start, *flags: str) -> list[str]:
    """The command of a module of rankbench.rank.world that starts ranks."""
    place = [
        f"--nodes={start.shape.nodes}",
        f"--address={start.address}",
        f"--port={start.port}",
    ]
    return [
        start.python,
        "-m",
        f"rankbench.rank.world.{module}",
        f"--ranks={start.shape.ranks_per_node}",
        *(place if start.is_spread else []),
        *flags,
        str(start.spec),
    ]


def read_exits(log: str) -> Mapping[int, int]:
    """Exit codes by rank, as the parents print them."""
    return {int(rank): int(code) for rank, code in _FAILED.findall(log)}
