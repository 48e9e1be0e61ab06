"""The Slurm plugin looks at its jobs as often as the profile says."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rankbench.polling import look_steadily

pytestmark = pytest.mark.unit


def test_looks_become_no_rarer_than_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = pytest.importorskip("snakemake_executor_plugin_slurm", reason="make venv")
    name = "next_seconds_between_status_checks"
    monkeypatch.setattr(plugin.Executor, name, getattr(plugin.Executor, name))
    look_steadily()
    executor = object.__new__(plugin.Executor)
    settings = SimpleNamespace(seconds_between_status_checks=15)
    executor.workflow = SimpleNamespace(remote_execution_settings=settings)
    # As its own code does: from few seconds on, ten more each time.
    executor.next_seconds_between_status_checks = 5
    assert executor.next_seconds_between_status_checks == 5
    executor.next_seconds_between_status_checks += 30
    assert executor.next_seconds_between_status_checks == 15
