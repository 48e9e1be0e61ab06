"""Operations of the Snakefile and the commands on an experiment on disk.

Only this package, `commands` and `cli` know more than one room.
"""

from rankbench.project.jobs import find_pending
from rankbench.project.preview import Preview
from rankbench.project.run import Run, open_run, reopen_run
from rankbench.project.start import (
    BEGUN,
    begin,
    end_with_parent,
    has_begun,
)

__all__ = [
    "BEGUN",
    "Preview",
    "Run",
    "begin",
    "end_with_parent",
    "find_pending",
    "has_begun",
    "open_run",
    "reopen_run",
]
