"""Ranks as one starts them by hand: a command each, its place in the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rankbench.launch_spec import LaunchSpec

NEEDS = {"init_methods": ["env", "tcp", "file"]}

_FAILED = re.compile(r"^rank (\d+) ended with exit code (-?\d+)$", re.MULTILINE)


def build_argv(spec: LaunchSpec) -> list[str]:
    return parent_argv("manual", spec, f"--init-method={spec.cell.init_method}")


def parent_argv(module: str, spec: LaunchSpec, *flags: str) -> list[str]:
    """The command of a module of rankbench.rank.world that starts ranks itself."""
    place = [
        f"--nodes={spec.shape.nodes}",
        f"--address={spec.address}",
        f"--port={spec.port}",
    ]
    return [
        spec.python,
        "-m",
        f"rankbench.rank.world.{module}",
        f"--ranks={spec.shape.ranks_per_node}",
        *(place if spec.is_spread else []),
        *flags,
        str(spec.file),
    ]


def read_exits(log: str) -> Mapping[int, int]:
    """Exit codes by rank, as the parents print them."""
    return {int(rank): int(code) for rank, code in _FAILED.findall(log)}
