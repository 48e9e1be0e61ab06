"""A job array of Slurm: a task for each host, which starts when the host is free.

Nobody knows beforehand where: the tasks meet by a file that all hosts see.
"""

from __future__ import annotations

from rankbench.launch.launchers import _parent
from rankbench.launch_spec import LaunchSpec

NEEDS = {
    "per": "array",
    "scheduler": "slurm",
    "runtimes": ["process_group"],
    "init_methods": ["file"],
}

read_exits = _parent.read_exits


def build_argv(spec: LaunchSpec) -> list[str]:
    return _parent.build_argv("manual", spec, f"--init-method={spec.cell.init_method}")
