"""Only one measurement runs on a machine at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rankbench.launch.hosts import machine_lock as machine

pytestmark = pytest.mark.unit

# A process that takes the lock, prints that, and keeps it.
HOLD = """
import sys, time
from rankbench.launch.hosts import machine_lock as machine
release = machine._take(sys.argv[1])
print("held" if release else "refused", flush=True)
time.sleep(60)
"""


@pytest.fixture
def name() -> str:
    """A lock of this test's own: a real measurement may run meanwhile."""
    return f"rankbench-test-{os.getpid()}"


@contextmanager
def another(name: str, **environ: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has asked for the lock; its answer can be read."""
    command = [sys.executable, "-c", HOLD, name]
    env = {**os.environ, **environ}
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_another_tmpdir_is_the_same_machine(name: str, tmp_path: Path) -> None:
    with another(name, TMPDIR=str(tmp_path)) as holder:
        assert answer(holder) == "held"
        assert machine._take(name) is None
        # The kernel releases the lock, however the process ends.
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    release = machine._take(name)
    assert release is not None
    with another(name) as late:
        assert answer(late) == "refused"
    release()
    with another(name) as later:
        assert answer(later) == "held"


def test_children_do_not_keep_it(name: str) -> None:
    release = machine._take(name)
    assert release is not None
    with subprocess.Popen(["sleep", "60"]) as child:
        release()
        again = machine._take(name)
        child.kill()
    assert again is not None
    again()


def test_a_file_takes_its_place_elsewhere(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine.sys, "platform", "darwin")
    monkeypatch.setattr(machine.tempfile, "gettempdir", lambda: str(tmp_path))
    release = machine._take(name)
    assert release is not None
    assert machine._take(name) is None
    release()
    again = machine._take(name)
    assert again is not None
    again()


def test_who_waits_says_so_once_and_can_be_told_to_stop(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[object] = [None, None, lambda: answers.append("released")]
    monkeypatch.setattr(machine, "_take", lambda _: answers.pop(0))
    monkeypatch.setattr(machine, "ASK_SECONDS", 0)
    said: list[str] = []
    with machine.machine_to_itself(machine.Waiting(lambda: None, said.append)):
        assert answers == []
    assert answers == ["released"]
    assert said == ["  waiting: another measurement runs on this machine"]

    def stop() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(machine, "_take", lambda _: None)
    with pytest.raises(KeyboardInterrupt):  # noqa: SIM117
        with machine.machine_to_itself(machine.Waiting(stop, said.append)):
            pytest.fail("it is not held")
