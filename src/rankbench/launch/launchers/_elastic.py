"""What torchrun and torch.distributed.launch share: torch's elastic agent."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rankbench.launch.launchers import Start

# Its summary lists every rank that failed; the line before it only the first one seen.
_FAILED = re.compile(r"\(local_rank: (\d+)\)\s+exitcode\s*: (-?\d+)")


def build_argv(module: str, start: Start, *, flags: tuple[str, ...] = ()) -> list[str]:
    """The command of a module of torch that starts ranks through the agent."""
    return [
        start.python,
        "-m",
        module,
        *flags,
        # Its own store on a port that the kernel chooses: nothing to collide with.
        "--standalone",
        "--local-addr=127.0.0.1",
        f"--nproc-per-node={start.shape.ranks_per_node}",
        # A restarted rank would be another measurement under the same number.
        "--max-restarts=0",
        # What it keeps of its ranks would else be left behind in /tmp.
        f"--log-dir={start.spec.parent / 'elastic'}",
        "--module",
        "rankbench.rank",
        str(start.spec),
    ]


def read_exits(log: str) -> Mapping[int, int]:
    """Exit codes by local rank, from the summary that the agent prints at its end."""
    return {int(rank): int(code) for rank, code in _FAILED.findall(log)}
