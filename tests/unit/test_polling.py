"""The patched Slurm plugin checks its jobs at the interval of the profile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
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
    made = object.__new__(plugin.Executor)

    async def answer(*_: object) -> tuple[dict[str, str] | None, float | None]:
        found = made.answers.pop(0)
        return found, None if found is None else 0.1

    monkeypatch.setattr(plugin, "query_job_status", answer)
    made.is_over = lambda _: False
    look_steadily(lambda job: made.is_over(job))
    return made


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
    monkeypatch.setattr(plugin, "query_job_status", plugin.query_job_status)
    for name in CHANGED:
        monkeypatch.setattr(plugin.Executor, name, getattr(plugin.Executor, name))
    look_steadily(lambda _: False)
    assert [plugin.get_min_job_age() for _ in range(4)] == [None, 300, 300, 300]


@pytest.fixture
def look(executor, monkeypatch) -> Callable[..., list[list[str]]]:
    """Plant answers of Slurm, which the plugin itself processes; who is left each time.

    `executor.ended` gets the reported jobs, `executor.warnings` the warnings.
    """
    import snakemake_executor_plugin_slurm as plugin

    monkeypatch.setattr(plugin, "get_min_job_age", lambda: 300)
    settings = SimpleNamespace(
        status_attempts=1, status_command="squeue", keep_successful_logs=True
    )
    checks = SimpleNamespace(seconds_between_status_checks=10)
    executor.ended, executor.warnings = [], []
    scheduler = SimpleNamespace(
        finish_callback=executor.ended.append,
        error_callback=lambda job: executor.ended.append(f"{job} failed"),
    )
    executor.workflow = SimpleNamespace(
        executor_settings=settings,
        remote_execution_settings=checks,
        scheduler=scheduler,
    )
    quiet = {name: lambda *_: None for name in ("debug", "info")}
    executor.logger = SimpleNamespace(
        **quiet, warning=lambda text, *values: executor.warnings.append(text % values)
    )
    executor.status_rate_limiter = asyncio.Lock()
    executor._preemption_warning, executor.run_uuid = False, "run"
    executor._next_seconds_between_status_checks = None
    executor._status_query_calls = executor._status_query_failures = 0
    executor._status_query_total_seconds = executor._status_query_max_seconds = 0
    executor._status_query_min_seconds = None
    executor._status_query_cycle_rows = []

    async def look_once(jobs: list[Any]) -> list[Any]:
        return [job async for job in executor.check_active_jobs(jobs)]

    def look(answers: list[Any], jobs: list[Any]) -> list[list[str]]:
        executor.answers, left = answers, []
        while jobs:
            jobs = asyncio.run(look_once(jobs))
            left.append([job.external_jobid for job in jobs])
        return left

    return look


def make_job(number: str, output: Path) -> Any:
    job = SimpleNamespace(output=[str(output)], name=number)
    return SimpleNamespace(external_jobid=number, job=job, aux={})


def test_a_look_that_fails_loses_no_job(executor, look, tmp_path):
    answers = [None, {"1": "RUNNING", "2": "COMPLETED"}, None, {"1": "COMPLETED"}]
    jobs = [make_job(number, tmp_path) for number in ("1", "2")]
    assert look(answers, jobs) == [["1", "2"], ["1"], ["1"], []]
    assert [job.name for job in executor.ended] == ["2", "1"]
    assert executor.warnings == [
        "Slurm did not report on 2 jobs: they will be checked again",
        "Slurm did not report on 1 jobs: they will be checked again",
    ]


def test_a_job_ends_that_slurm_preempted_or_has_forgotten(executor, look, tmp_path):
    """If Slurm says so twice. One that has not reached the accounting goes on."""
    executor.is_over = lambda job: job != "3" or len(executor.answers) < 2
    failed: list[str] = []
    executor.report_job_error = lambda job: failed.append(job.external_jobid)
    lacking = tmp_path / "lacking"
    jobs = [make_job("1", lacking), make_job("2", tmp_path), make_job("3", tmp_path)]
    answers = [{"1": "PREEMPTED"}, None, {"1": "PREEMPTED"}, {}, {}]
    assert look(answers, jobs) == [["1", "2", "3"], ["1", "2", "3"], ["3"], ["3"], []]
    assert failed == ["1"]
    assert [job.name for job in executor.ended] == ["2", "3"]
