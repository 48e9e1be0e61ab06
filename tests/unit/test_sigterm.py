"""Snakemake survives a SIGTERM that comes while its scheduler holds a lock."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from rankbench.snakemake_fixes import take_sigterm_in_a_thread

pytestmark = pytest.mark.unit


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A patched scheduler of Snakemake with only what its signal handler uses."""
    module = pytest.importorskip("snakemake.scheduling.job_scheduler")
    kind = module.JobScheduler
    monkeypatch.setattr(kind, "exit_gracefully", kind.exit_gracefully)
    take_sigterm_in_a_thread()
    scheduler = object.__new__(kind)
    scheduler._lock = threading.Lock()
    scheduler._open_jobs = threading.Semaphore(0)
    scheduler._user_kill = None
    return scheduler


@pytest.mark.parametrize("signals", [1, 2])
def test_the_handler_does_not_wait_for_the_thread_it_interrupts(scheduler, signals):
    def interrupt() -> None:
        for _ in range(signals):
            scheduler.exit_gracefully(15, None)

    handlers = threading.Thread(target=interrupt, daemon=True)
    with scheduler._lock:
        handlers.start()
        handlers.join(timeout=400)
        assert not handlers.is_alive()
        assert scheduler._user_kill is None
    for _ in range(signals):
        assert scheduler._open_jobs.acquire(timeout=400)
    assert scheduler._user_kill == "graceful"


def test_another_version_is_refused(monkeypatch):
    monkeypatch.setattr("rankbench.snakemake_fixes.version", lambda _: "10.1.0")
    with pytest.raises(ValueError, match=r"snakemake 10.1.0: .* 'snakemake==9\.\*'"):
        take_sigterm_in_a_thread()
