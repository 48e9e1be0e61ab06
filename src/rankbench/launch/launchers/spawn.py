"""torch.multiprocessing.spawn: one parent process, its children are the ranks."""

from __future__ import annotations

from rankbench.launch.launchers import Start, _parent

read_exits = _parent.read_exits


def build_argv(start: Start) -> list[str]:
    return [
        start.python,
        "-m",
        "rankbench.rank.spawn",
        f"--ranks={start.shape.ranks_per_node}",
        str(start.spec),
    ]
