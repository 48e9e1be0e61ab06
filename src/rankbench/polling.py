"""How the Slurm plugin looks at its jobs: as often as asked, and losing none."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any


def look_steadily() -> None:
    """Mend two ways in which the plugin would miss the end of a job.

    It waits ten seconds more after each look at which nothing had ended, up to three
    minutes: the end of a cell that takes an hour would be seen that much later. Now
    Snakemake's `seconds-between-status-checks` is a maximum.

    And when Slurm does not answer (a controller that restarts, or is busy for long), it
    tells of no job, and looks at none of them ever again: Snakemake would wait forever.
    Now what a look has not told of is looked at the next time.
    """
    from snakemake_executor_plugin_slurm import Executor

    _hold_the_pace(Executor)
    _lose_no_job(Executor)


def _hold_the_pace(executor_class: Any) -> None:
    growing = executor_class.next_seconds_between_status_checks

    def seconds(executor: Any) -> float:
        settings = executor.workflow.remote_execution_settings
        longest: float = settings.seconds_between_status_checks
        wanted: float = growing.fget(executor)
        return min(wanted, longest)

    executor_class.next_seconds_between_status_checks = property(seconds, growing.fset)


def _lose_no_job(executor_class: Any) -> None:
    ended: set[str] = set()

    def remembering(report: Callable[..., None]) -> Callable[..., None]:
        def remember(executor: Any, job: Any, *args: Any, **kwargs: Any) -> None:
            ended.add(job.external_jobid)
            report(executor, job, *args, **kwargs)

        return remember

    for name in ("report_job_success", "report_job_error"):
        setattr(executor_class, name, remembering(getattr(executor_class, name)))
    look = executor_class.check_active_jobs

    async def look_at_all(executor: Any, jobs: Sequence[Any]) -> AsyncIterator[Any]:
        running = set()
        async for job in look(executor, jobs):
            running.add(job.external_jobid)
            yield job
        untold = [job for job in jobs if job.external_jobid not in running | ended]
        if untold:
            text = "Slurm told nothing of %d jobs: they are looked at again"
            executor.logger.warning(text, len(untold))
        for job in untold:
            yield job

    executor_class.check_active_jobs = look_at_all
