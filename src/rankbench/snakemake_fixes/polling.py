"""Corrects how Snakemake's Slurm plugin polls its jobs."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from rankbench.schedulers import seconds_between_looks
from rankbench.snakemake_fixes import check_version


def look_steadily() -> None:
    """Patch three faults of the plugin: it looks too late, too much, or never again.

    After each check without an ended job, the plugin waits ten seconds longer, up to
    three minutes. So it would notice the end of a short cell much too late. The patch
    waits `seconds-between-status-checks` of Snakemake, and longer only in proportion to
    what has been waited for already.

    Before each check, the plugin asks for the whole configuration of Slurm. The patch
    lets it ask until it gets an answer.

    When Slurm does not answer (its controller restarts, or is busy for long), the
    plugin drops all jobs and never checks them again, so Snakemake would wait forever.
    The patch checks a job again if a check did not report on it.
    """
    check_version("snakemake-executor-plugin-slurm", 2)
    import snakemake_executor_plugin_slurm as plugin

    _hold_the_pace(plugin.Executor)
    _lose_no_job(plugin.Executor)
    plugin.get_min_job_age = _remember(plugin.get_min_job_age)


def _remember(ask: Callable[[], Any]) -> Callable[[], Any]:
    """Return a function that asks until there is an answer, and then keeps it."""
    kept: list[Any] = []

    def answer() -> Any:
        if not kept and (found := ask()) is not None:
            kept.append(found)
        return kept[0] if kept else None

    return answer


def _hold_the_pace(executor_class: Any) -> None:
    growing = executor_class.next_seconds_between_status_checks

    def seconds(executor: Any) -> float:
        settings = executor.workflow.remote_execution_settings
        least: float = settings.seconds_between_status_checks
        wanted: float = growing.fget(executor)
        quiet = time.monotonic() - getattr(executor, "_quiet_since", time.monotonic())
        return min(wanted, seconds_between_looks(least, quiet))

    def note(executor: Any, wanted: float) -> None:
        # The plugin counts from the beginning again when a job has ended.
        settings = executor.workflow.executor_settings
        initial = getattr(settings, "init_seconds_before_status_checks", 40)
        if wanted <= initial or not hasattr(executor, "_quiet_since"):
            executor._quiet_since = time.monotonic()
        growing.fset(executor, wanted)

    executor_class.next_seconds_between_status_checks = property(seconds, note)


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
