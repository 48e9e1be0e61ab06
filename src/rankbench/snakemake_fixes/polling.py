"""Corrects how Snakemake's Slurm plugin polls its jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from rankbench.snakemake_fixes import check_version


def look_steadily() -> None:
    """Patch two faults of the plugin, so that it notices the end of every job in time.

    After each check without an ended job, the plugin waits ten seconds longer, up to
    three minutes. So it would notice the end of a long cell up to three minutes late.
    The patch makes Snakemake's `seconds-between-status-checks` a maximum.

    When Slurm does not answer (its controller restarts, or is busy for long), the
    plugin drops all jobs and never checks them again, so Snakemake would wait forever.
    The patch checks a job again if a check did not report on it.
    """
    check_version("snakemake-executor-plugin-slurm", 2)
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
            # Snakemake's log handler does not fill in arguments.
            said = f"Slurm did not report on {len(untold)} jobs"
            executor.logger.warning(f"{said}: they will be checked again")
        for job in untold:
            yield job

    executor_class.check_active_jobs = look_at_all
