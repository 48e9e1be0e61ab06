"""torch.multiprocessing.spawn: one parent process, its children are the ranks."""

from __future__ import annotations

from rankbench.launch.launchers import manual
from rankbench.launch_spec import LaunchSpec

read_exits = manual.read_exits


def build_argv(spec: LaunchSpec) -> list[str]:
    return manual.parent_argv("spawn", spec)
