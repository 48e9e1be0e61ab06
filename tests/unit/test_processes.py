"""Ending a launch: no process may be left, wherever it hid.

The supervisor of these tests is a process of its own, so that the one that runs the
tests adopts nothing.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.unit

# A program that writes its process id and waits to be ended.
WAIT = "open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(60)"
IGNORE = "signal.signal(signal.SIGTERM, signal.SIG_IGN); " + WAIT
# A program that starts a process in a new session, and ends.
HIDE = "subprocess.Popen([sys.executable, *sys.argv[1:]], start_new_session=True)"
IMPORTS = "import os, signal, subprocess, sys, time; "

SUPERVISOR = """
import json, os, subprocess, sys, time
from pathlib import Path
from rankbench.launch import processes

processes.adopt_orphans()
child = subprocess.Popen([sys.executable, *sys.argv[2:]])
processes.awaited.add(child.pid)
files = [Path(a) for a in sys.argv[2:] if a.endswith(".pid")]
deadline = time.monotonic() + 30
while not all(f.exists() and f.read_text() for f in files):
    assert time.monotonic() < deadline
    time.sleep(0.01)
ended = processes.wait_for_exit(child, 0.2)
found = set(processes.descendants())
begun = time.monotonic()
processes.end_processes(grace=float(sys.argv[1]))
print(json.dumps({
    "ended": ended,
    "found": sorted(found),
    "seconds": time.monotonic() - begun,
    "returncode": child.wait(),
    "children": len(processes.descendants()),
}))
"""


@pytest.fixture
def supervise(tmp_path: Path) -> Callable[..., tuple[dict, int]]:
    """Runs a supervisor that starts and ends a tree of processes."""

    def run(*command: str, grace: float) -> tuple[dict, int]:
        import json

        pid_file = tmp_path / "victim.pid"
        done = subprocess.run(
            [sys.executable, "-c", SUPERVISOR, str(grace), *command, str(pid_file)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout), int(pid_file.read_text())

    return run


def test_child_is_ended(supervise):
    told, victim = supervise("-c", IMPORTS + WAIT, grace=10)
    assert told["found"] == [victim]
    assert not told["ended"]
    assert told["returncode"] == -15
    assert told["seconds"] < 5
    assert not psutil.pid_exists(victim)


def test_orphan_in_a_session_of_its_own_is_found(supervise):
    told, victim = supervise("-c", IMPORTS + HIDE, "-c", IMPORTS + WAIT, grace=10)
    # The launcher has ended; its exit status is left for the supervisor.
    assert told["ended"]
    assert told["returncode"] == 0
    assert told["found"] == [victim]
    assert told["seconds"] < 5
    assert not psutil.pid_exists(victim)
    assert told["children"] == 0


def test_process_that_ignores_sigterm_is_killed(supervise):
    told, victim = supervise("-c", IMPORTS + IGNORE, grace=0.5)
    assert told["returncode"] == -9
    assert 0.5 <= told["seconds"] < 5
    assert not psutil.pid_exists(victim)


def test_children_of_a_killed_process_are_ended_too(supervise):
    parent = "signal.signal(signal.SIGTERM, signal.SIG_IGN); " + HIDE + ".wait()"
    told, victim = supervise("-c", IMPORTS + parent, "-c", IMPORTS + IGNORE, grace=0.2)
    assert len(told["found"]) == 2
    assert victim in told["found"]
    assert not any(psutil.pid_exists(pid) for pid in told["found"])
    assert told["children"] == 0
