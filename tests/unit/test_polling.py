"""The patched Slurm plugin checks its jobs at the interval of the profile."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from rankbench import snakemake_fixes
from rankbench.snakemake_fixes import look_steadily

pytestmark = pytest.mark.unit


CHANGED = (
    *("next_seconds_between_status_checks", "check_active_jobs"),
    *("report_job_success", "report_job_error"),
)


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A patched executor of the plugin without any job."""
    plugin = pytest.importorskip("snakemake_executor_plugin_slurm", reason="make venv")
    for name in CHANGED:
        monkeypatch.setattr(plugin.Executor, name, getattr(plugin.Executor, name))
    monkeypatch.setattr(plugin, "get_min_job_age", plugin.get_min_job_age)
    look_steadily()
    return object.__new__(plugin.Executor)


def test_looks_become_rarer_in_proportion_to_the_wait(executor, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(snakemake_fixes.time, "monotonic", lambda: now[0])
    executor.workflow = SimpleNamespace(
        remote_execution_settings=SimpleNamespace(seconds_between_status_checks=15),
        executor_settings=SimpleNamespace(init_seconds_before_status_checks=5),
    )
    # The plugin itself starts with a few seconds and adds ten each time.
    executor.next_seconds_between_status_checks = 5
    seconds = []
    for quiet in (0, 30, 200, 600, 7200):
        now[0] = 1000.0 + quiet
        seconds.append(executor.next_seconds_between_status_checks)
        executor.next_seconds_between_status_checks += 60
    assert seconds == [5, 15, 15, 30, 60]
    # A job has ended.
    executor.next_seconds_between_status_checks = 5
    assert executor.next_seconds_between_status_checks == 5
    executor.next_seconds_between_status_checks += 30
    assert executor.next_seconds_between_status_checks == 15


def test_slurms_configuration_is_asked_for_until_it_answers(monkeypatch):
    plugin = pytest.importorskip("snakemake_executor_plugin_slurm", reason="make venv")
    answers = [None, 300]
    monkeypatch.setattr(plugin, "get_min_job_age", lambda: answers.pop(0))
    for name in CHANGED:
        monkeypatch.setattr(plugin.Executor, name, getattr(plugin.Executor, name))
    look_steadily()
    assert [plugin.get_min_job_age() for _ in range(4)] == [None, 300, 300, 300]


def test_a_look_that_fails_loses_no_job(executor, monkeypatch):
    """The answers of Slurm are planted; the plugin itself processes them."""
    import snakemake_executor_plugin_slurm as plugin

    answers = [None, {"1": "RUNNING", "2": "COMPLETED"}, None, {"1": "COMPLETED"}]

    async def answer(*_: object) -> tuple[dict[str, str] | None, float | None]:
        found = answers.pop(0)
        return found, None if found is None else 0.1

    monkeypatch.setattr(plugin, "query_job_status", answer)
    monkeypatch.setattr(plugin, "get_min_job_age", lambda: 300)
    settings = SimpleNamespace(
        status_attempts=1, status_command="squeue", keep_successful_logs=True
    )
    checks = SimpleNamespace(seconds_between_status_checks=10)
    ended = []
    scheduler = SimpleNamespace(finish_callback=ended.append)
    executor.workflow = SimpleNamespace(
        executor_settings=settings,
        remote_execution_settings=checks,
        scheduler=scheduler,
    )
    warnings = []
    quiet = {name: lambda *_: None for name in ("debug", "info")}
    executor.logger = SimpleNamespace(
        **quiet, warning=lambda text, *values: warnings.append(text % values)
    )
    executor.status_rate_limiter = asyncio.Lock()
    executor.run_uuid = "run"
    executor._status_query_calls = executor._status_query_failures = 0
    executor._status_query_total_seconds = executor._status_query_max_seconds = 0
    executor._status_query_min_seconds = None
    executor._status_query_cycle_rows = []
    jobs = [
        SimpleNamespace(external_jobid=number, job=f"job {number}", aux={})
        for number in ("1", "2")
    ]

    async def look() -> list[Any]:
        return [job async for job in executor.check_active_jobs(jobs)]

    left = []
    while jobs:
        jobs = asyncio.run(look())
        left.append([job.external_jobid for job in jobs])
    assert left == [["1", "2"], ["1"], ["1"], []]
    assert ended == ["job 2", "job 1"]
    assert warnings == [
        "Slurm did not report on 2 jobs: they will be checked again",
        "Slurm did not report on 1 jobs: they will be checked again",
    ]
