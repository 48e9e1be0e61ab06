"""How often the Slurm plugin looks at its jobs."""

from __future__ import annotations

from typing import Any


def look_steadily() -> None:
    """Have the plugin hold Snakemake's `seconds-between-status-checks` as a maximum.

    It waits ten seconds more after each look at which nothing had ended, up to three
    minutes: the end of a cell that takes an hour would be seen that much later.
    """
    from snakemake_executor_plugin_slurm import Executor

    growing = Executor.next_seconds_between_status_checks

    def seconds(executor: Any) -> float:
        settings = executor.workflow.remote_execution_settings
        longest: float = settings.seconds_between_status_checks
        wanted: float = growing.fget(executor)
        return min(wanted, longest)

    Executor.next_seconds_between_status_checks = property(seconds, growing.fset)
