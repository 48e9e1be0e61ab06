"""torchrun on one machine."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rankbench.launch.launchers import Start

# Its summary lists every rank that failed; the line before it only the first one seen.
_FAILED = re.compile(r"\(local_rank: (\d+)\)\s+exitcode\s*: (-?\d+)")


def build_argv(start: Start) -> list[str]:
    return [
        start.python,
        "-m",
        "torch.distributed.run",
        # Its own store on a port that the kernel chooses: nothing to collide with.
        "--standalone",
        "--local-addr=127.0.0.1",
        f"--nproc-per-node={start.shape.ranks_per_node}",
        # A restarted rank would be another measurement under the same number.
        "--max-restarts=0",
        "--module",
        "rankbench.rank",
        str(start.spec),
    ]


def read_exits(log: str) -> Mapping[int, int]:
    return {int(rank): int(code) for rank, code in _FAILED.findall(log)}
