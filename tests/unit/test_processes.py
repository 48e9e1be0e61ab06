"""Ending a launch: no process may be left, wherever it hid.

The supervisor of these tests is a process of its own, so that the one that runs the
tests adopts nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys

import psutil
import pytest

pytestmark = pytest.mark.unit

# A program that writes its process id and waits to be ended.
WAIT = "open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
IGNORE = "signal.signal(signal.SIGTERM, signal.SIG_IGN); " + WAIT
# A program that starts a process in a new session, and ends.
HIDE = "subprocess.Popen([sys.executable, *sys.argv[1:]], start_new_session=True)"
IMPORTS = "import os, signal, subprocess, sys, time; "

SUPERVISOR = """
import json, os, subprocess, sys, time
from pathlib import Path
from rankbench.launch import processes

processes.adopt_orphans()
child = subprocess.Popen([sys.executable, *sys.argv[3:]])
processes.awaited.add(child.pid)
files = [Path(a) for a in sys.argv[3:] if a.endswith(".pid")]
deadline = time.monotonic() + 400
while not all(f.exists() and f.read_text() for f in files):
    assert time.monotonic() < deadline
    time.sleep(0.01)
ended = processes.wait_for_exit(child, float(sys.argv[2]))
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


DEAF_PARENT = f"signal.signal(signal.SIGTERM, signal.SIG_IGN); {HIDE}.wait()"


@pytest.mark.parametrize(
    ("programs", "grace", "returncodes", "count"),
    [
        pytest.param([WAIT], 60.0, {-15}, 1, id="a child"),
        # The launcher has ended; its exit status is left for the supervisor.
        pytest.param(
            [HIDE, WAIT], 60.0, {0}, 1, id="an orphan in a session of its own"
        ),
        pytest.param([IGNORE], 0.5, {-9}, 1, id="it ignores SIGTERM"),
        pytest.param([DEAF_PARENT, IGNORE], 0.2, {-9, 0}, 2, id="so does its parent"),
    ],
)
def test_no_process_is_left(tmp_path, programs, grace, returncodes, count):
    """None is killed that ends when it is asked to."""
    file = tmp_path / "victim.pid"
    # Only one of them ends by itself.
    patience = "400" if programs[0] == HIDE else "0"
    words = [word for program in programs for word in ("-c", IMPORTS + program)]
    done = subprocess.run(
        [sys.executable, "-c", SUPERVISOR, str(grace), patience, *words, str(file)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["ended"] == (programs[0] == HIDE)
    assert told["returncode"] in returncodes
    assert len(told["found"]) == count
    assert int(file.read_text()) in told["found"]
    assert (told["seconds"] >= grace) == (-9 in returncodes)
    assert not any(psutil.pid_exists(pid) for pid in told["found"])
    assert told["children"] == 0
