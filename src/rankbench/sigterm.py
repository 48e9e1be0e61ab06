"""How Snakemake takes SIGTERM: without waiting for itself."""

from __future__ import annotations

import _thread
from typing import Any


def take_sigterm_in_a_thread() -> None:
    """Mend a deadlock of Snakemake's scheduler.

    Its handler takes locks, which the thread that it interrupts may hold, as while it
    sees to the end of a job. Snakemake then hangs, and outlives its Slurm job where
    Slurm finds processes by their parents. In a thread of its own the handler waits.
    """
    from snakemake.scheduling.job_scheduler import JobScheduler

    handler = JobScheduler.exit_gracefully

    def handle(scheduler: Any, *_: object) -> None:
        # Not threading.Thread, whose start takes locks, too.
        _thread.start_new_thread(handler, (scheduler,))

    JobScheduler.exit_gracefully = handle
