"""A job array of Slurm: a task for each host, which starts when the host is free.

Nobody knows beforehand where: the tasks meet by a file that all hosts see.
"""

from __future__ import annotations

from rankbench.launch.launchers import Start, _parent

NEEDS = {
    "per": "array",
    "scheduler": "slurm",
    "runtimes": ["process_group"],
    "init_methods": ["file"],
}

read_exits = _parent.read_exits


def build_argv(start: Start) -> list[str]:
    return _parent.build_argv("manual", start, f"--init-method={start.init_method}")
