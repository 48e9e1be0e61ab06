"""Operations of the Snakefile and the commands on an experiment on disk.

Only this package, `commands` and `cli` know more than one room.
"""

from rankbench.project.lock import InUse
from rankbench.project.opening import open_run, reopen_run
from rankbench.project.preview import make_preview
from rankbench.project.requests import find_pending
from rankbench.project.run import Run
from rankbench.project.start import begin

__all__ = [
    "InUse",
    "Run",
    "begin",
    "find_pending",
    "make_preview",
    "open_run",
    "reopen_run",
]
