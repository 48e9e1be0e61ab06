"""A machine: its GPUs, and only one measurement on it at a time."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from rankbench.launch.hosts.base import Waiting, machine_to_itself, take_lock
from rankbench.launch.process.gpu_usage import visible_gpus

pytestmark = pytest.mark.unit

# A process that takes the lock, prints that, and keeps it.
HOLD = """
import pwd, sys, time, types
from rankbench.launch.hosts.base import take_lock
pwd.getpwuid = lambda _: types.SimpleNamespace(pw_dir=sys.argv[1])
lock = take_lock()
print("held" if lock else "refused", flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home of this test's own: a real measurement may run meanwhile."""
    home = SimpleNamespace(pw_dir=str(tmp_path))
    monkeypatch.setattr(pwd, "getpwuid", lambda _: home)


@contextmanager
def another(home: Path, **environ: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has asked for the lock; its answer can be read."""
    command = [sys.executable, "-c", HOLD, str(home)]
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


def test_another_tmpdir_is_the_same_machine(tmp_path):
    with another(tmp_path, TMPDIR=str(tmp_path), HOME="/") as holder:
        assert answer(holder) == "held"
        assert take_lock() is None
        # The kernel releases the lock, however the process ends.
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    lock = take_lock()
    assert lock is not None
    # No other user can open it, or the folder that it is in.
    (file,) = tmp_path.rglob("*.lock")
    assert file.stat().st_mode & 0o77 == file.parent.stat().st_mode & 0o77 == 0
    with another(tmp_path) as late:
        assert answer(late) == "refused"
    lock.close()
    with another(tmp_path) as later:
        assert answer(later) == "held"


def test_children_do_not_keep_it():
    lock = take_lock()
    assert lock is not None
    with subprocess.Popen(["sleep", "600"]) as child:
        lock.close()
        again = take_lock()
        child.kill()
    assert again is not None
    again.close()


def test_who_waits_says_so_once_and_can_be_told_to_stop(tmp_path):
    said: list[str] = []
    asked: list[None] = []

    def stop() -> None:
        asked.append(None)
        if len(asked) > 2:
            raise KeyboardInterrupt

    with another(tmp_path) as holder:
        assert answer(holder) == "held"
        with (
            pytest.raises(KeyboardInterrupt),
            machine_to_itself(Waiting(said.append, stop)),
        ):
            pytest.fail("it is not held")
    assert len(said) == 1
    with machine_to_itself(Waiting(said.append, stop)):
        assert take_lock() is None
        with (
            pytest.raises(KeyboardInterrupt),
            machine_to_itself(Waiting(said.append, stop)),
        ):
            pytest.fail("it is not held")
    whose = f"this machine: process {os.getpid()} in {os.getcwd()}"
    assert said[1] == f"  waiting: another measurement runs on {whose}"


@pytest.mark.parametrize(
    ("visible", "present", "count"),
    [
        (None, 4, 4),
        ("0, 2", 4, 2),
        ("0,-1,2", 4, 1),
        ("GPU-8f5a,GPU-31c2", 4, 2),
        ("MIG-77aa", 1, 1),
        ("10000", 4, 0),
        ("0,7,1", 4, 1),
        ("", 4, 0),
        ("none", 4, 0),
        ("NoDevFiles", 0, 0),
        ("0", 0, 0),
        ("-1,0", 4, 0),
        ("0,0", 4, 0),
        ("GPU-xyz,none", 4, 1),
        ("GPU-8f5a,1", 4, 1),
        ("1,GPU-8f5a", 4, 1),
    ],
)
def test_gpus_are_counted_as_cuda_does(visible, present, count):
    assert len(visible_gpus(visible, present)) == count
