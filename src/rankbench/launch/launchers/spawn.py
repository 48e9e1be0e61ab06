"""torch.multiprocessing.spawn: one parent process, its children are the ranks."""

from __future__ import annotations

from rankbench.launch.launchers import Start, _parent

read_exits = _parent.read_exits


def build_argv(start: Start) -> list[str]:
    return _parent.build_argv("spawn", start)
