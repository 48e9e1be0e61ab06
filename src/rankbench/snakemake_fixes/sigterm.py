"""Prevents a deadlock when Snakemake handles SIGTERM."""

from __future__ import annotations

import _thread
from typing import Any

from rankbench.snakemake_fixes import check_version


def take_sigterm_in_a_thread() -> None:
    """Patch Snakemake's scheduler to handle SIGTERM in a separate thread.

    Its handler takes locks that the interrupted thread may hold, for example while it
    finishes a job. Then Snakemake would hang, and outlive its Slurm job if Slurm tracks
    processes by their parents. A separate thread can wait for the locks.
    """
    check_version("snakemake", 9)
    from snakemake.scheduling.job_scheduler import JobScheduler

    handler = JobScheduler.exit_gracefully

    def handle(scheduler: Any, *_: object) -> None:
        # Not threading.Thread, because its start takes locks as well.
        _thread.start_new_thread(handler, (scheduler,))

    JobScheduler.exit_gracefully = handle
