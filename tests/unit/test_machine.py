"""A machine: its GPUs, and only one measurement on it at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rankbench.launch.hosts.base import Waiting, machine_to_itself, take_lock
from rankbench.launch.site.machine import count_visible

pytestmark = pytest.mark.unit

# A process that takes the lock, prints that, and keeps it.
HOLD = """
import sys, time
from rankbench.launch.hosts.base import take_lock
lock = take_lock(sys.argv[1])
print("held" if lock else "refused", flush=True)
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


def test_another_tmpdir_is_the_same_machine(name, tmp_path):
    with another(name, TMPDIR=str(tmp_path)) as holder:
        assert answer(holder) == "held"
        assert take_lock(name) is None
        # The kernel releases the lock, however the process ends.
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    lock = take_lock(name)
    assert lock is not None
    with another(name) as late:
        assert answer(late) == "refused"
    lock.close()
    with another(name) as later:
        assert answer(later) == "held"


def test_children_do_not_keep_it(name):
    lock = take_lock(name)
    assert lock is not None
    with subprocess.Popen(["sleep", "60"]) as child:
        lock.close()
        again = take_lock(name)
        child.kill()
    assert again is not None
    again.close()


def test_who_waits_says_so_once_and_can_be_told_to_stop(name):
    said: list[str] = []
    asked: list[None] = []

    def stop() -> None:
        asked.append(None)
        if len(asked) > 2:
            raise KeyboardInterrupt

    with another(name) as holder:
        assert answer(holder) == "held"
        with (
            pytest.raises(KeyboardInterrupt),
            machine_to_itself(Waiting(said.append, stop), name),
        ):
            pytest.fail("it is not held")
    assert said == ["  waiting: another measurement runs on this machine"]
    with machine_to_itself(Waiting(said.append, stop), name):
        assert take_lock(name) is None
    assert len(said) == 1


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
    ],
)
def test_gpus_are_counted_as_cuda_does(visible, present, count):
    assert count_visible(visible, present) == count
