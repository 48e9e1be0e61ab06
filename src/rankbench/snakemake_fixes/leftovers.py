"""Removes what a Snakemake that was killed has left."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

_LOCK = "rankbench.lock"


def sweep_temporary_folders(workflow: Any) -> FileLock:
    """Remove temporary folders of killed Snakemakes, and mark that of this one.

    Each Snakemake makes a folder in TMPDIR, and removes it at its end. If it is killed,
    the folder stays. A lock file in it, which the kernel releases, tells that its owner
    is gone. Folders without that file belong to others.

    Args:
        workflow: Snakemake's object of this process.

    Returns:
        The lock of this process; its folder is in use as long as the object exists.
    """
    own = Path(workflow._snakemake_tmp_dir.name)
    lock = FileLock(own / _LOCK)
    lock.acquire()
    for other in own.parent.glob(f"snakemake*/{_LOCK}"):
        if other.parent == own:
            continue
        try:
            with FileLock(other, timeout=0):
                shutil.rmtree(other.parent, ignore_errors=True)
        except (OSError, Timeout):
            continue  # It belongs to another user, or to one that runs.
    return lock
