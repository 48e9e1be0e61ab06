"""A job array of Slurm: a task for each host, which starts when the host is free.

Nobody knows beforehand where: the tasks meet by a file that all hosts see.
"""

from __future__ import annotations

from rankbench.launch.launchers import manual

NEEDS = {
    "per": "array",
    "scheduler": "slurm",
    "runtimes": ["process_group"],
    "init_methods": ["file"],
}

build_argv = manual.build_argv
read_exits = manual.read_exits
