"""torch.multiprocessing.spawn: one parent process, its children are the ranks."""

from __future__ import annotations

from rankbench.launch.launchers import _parent
from rankbench.launch_spec import LaunchSpec

read_exits = _parent.read_exits


def build_argv(spec: LaunchSpec) -> list[str]:
    return _parent.build_argv("spawn", spec)
