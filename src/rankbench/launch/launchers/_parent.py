"""What the parents of ranks that are our own print when ranks fail."""

from __future__ import annotations

import re
from collections.abc import Mapping

_FAILED = re.compile(r"^rank (\d+) ended with exit code (-?\d+)$", re.MULTILINE)


def read_exits(log: str) -> Mapping[int, int]:
    """Exit codes by local rank."""
    return {int(rank): int(code) for rank, code in _FAILED.findall(log)}
