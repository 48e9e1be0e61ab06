"""A spinning thread gets a lower priority; a waiting thread does not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from rankbench.launch.images.spinning import LAST, spinning_steps_back

pytestmark = pytest.mark.unit

SPIN = "while :; do :; done"


@pytest.mark.parametrize(("program", "nice"), [("spinner", LAST), ("another", 0)])
def test_only_what_spins_and_is_meant(tmp_path: Path, program: str, nice: int) -> None:
    shell = shutil.copy(shutil.which("sh") or sys.exit("no sh"), tmp_path / "spinner")
    spinner = subprocess.Popen([shell, "-c", SPIN])
    waiting = subprocess.Popen([shell, "-c", "read line"], stdin=subprocess.PIPE)
    try:
        with spinning_steps_back(program):
            deadline = time.monotonic() + (60 if nice else 6)
            while niceness(spinner) != nice or not nice:
                if time.monotonic() > deadline:
                    break
                time.sleep(0.1)
        # The niceness of a process is at most 19; this process may already be nice.
        assert niceness(spinner) == min(LAST, os.nice(0) + nice)
        assert niceness(waiting) == os.nice(0)
    finally:
        for process in (spinner, waiting):
            process.kill()
            process.wait()


def niceness(process: subprocess.Popen) -> int:
    return psutil.Process(process.pid).nice()
