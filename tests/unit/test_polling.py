"""How jobs of the Slurm plugin are looked for: when, and what becomes of each."""

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

# What an executor was told, and what it has said.
Executor = SimpleNamespace


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch) -> Executor:
    """What the patched function reads of an executor; `answers` are those of Slurm."""
    plugin = pytest.importorskip("snakemake_executor_plugin_slurm", reason="make venv")
    monkeypatch.setattr(plugin.Executor, "check_active_jobs", None)
    made = Executor(answers=[], ended=[], warnings=[])
    look_steadily(lambda: made.answers.pop(0))
    made.check_active_jobs = plugin.Executor.check_active_jobs
    made.report_job_success = lambda job: made.ended.append(job.external_jobid)
    made.report_job_error = lambda job: made.ended.append(
        f"{job.external_jobid} failed"
    )
    made.logger = SimpleNamespace(warning=made.warnings.append)
    made.workflow = SimpleNamespace(
        remote_execution_settings=SimpleNamespace(seconds_between_status_checks=15),
        executor_settings=SimpleNamespace(init_seconds_before_status_checks=5),
    )
    return made


@pytest.fixture
def look(executor: Executor) -> Callable[[Any, list[Any]], list[list[str]]]:
    """Which jobs are left after each answer."""

    async def look_once(jobs: list[Any]) -> list[Any]:
        return [job async for job in executor.check_active_jobs(executor, jobs)]

    def look(answers: Any, jobs: list[Any]) -> list[list[str]]:
        executor.answers, left = list(answers), []
        while executor.answers:
            jobs = asyncio.run(look_once(jobs))
            left.append([job.external_jobid for job in jobs])
        return left

    return look


def make_job(number: str, output: Path) -> Any:
    job = SimpleNamespace(output=[str(output)])
    return SimpleNamespace(external_jobid=number, job=job)


def test_looks_become_rarer_in_proportion_to_the_wait(executor, look, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(snakemake_fixes.time, "monotonic", lambda: now[0])
    job, seconds = make_job("1", Path()), []
    look([{"2": "COMPLETED", "1": "RUNNING"}], [job, make_job("2", Path())])
    for quiet in (0, 30, 200, 600, 7200):
        now[0] = 1000.0 + quiet
        look([{"1": "RUNNING"}], [job])
        seconds.append(executor.next_seconds_between_status_checks)
    assert seconds == [15, 15, 15, 30, 60]
    # A job has ended.
    look([{"1": "COMPLETED"}], [job])
    assert executor.next_seconds_between_status_checks == 5


def test_a_look_that_fails_loses_no_job(executor, look, tmp_path):
    answers = [None, {"1": "RUNNING", "2": "COMPLETED"}, None, {"1": "NODE_FAIL"}]
    jobs = [make_job(number, tmp_path) for number in ("1", "2")]
    assert look(answers, jobs) == [["1", "2"], ["1"], ["1"], []]
    assert executor.ended == ["2", "1 failed"]
    assert executor.warnings == [
        "Slurm did not report on 2 jobs: they will be checked again",
        "Slurm did not report on 1 jobs: they will be checked again",
    ]


def test_a_job_ends_that_slurm_preempted_or_has_forgotten(executor, look, tmp_path):
    """If Slurm says so twice in a row: a new one may not be known yet."""
    jobs = [make_job("1", tmp_path / "lacking"), make_job("2", tmp_path)]
    jobs.append(make_job("3", tmp_path))
    answers = [{"1": "PREEMPTED"}, None, {"1": "PREEMPTED", "3": "PENDING"}, {}, {}]
    every = ["1", "2", "3"]
    assert look(answers, jobs) == [every, every, ["3"], ["3"], []]
    assert executor.ended == ["1 failed", "2", "3"]
