"""Launches that fail in every way: each reason quotes code, or what was printed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evidence import read_record
from factories import make_cell, make_shape, make_spec
from rankbench.launch_spec import LaunchOptions

pytestmark = pytest.mark.contract

SUPERVISOR = """
import sys
from pathlib import Path
from time import monotonic, sleep
from types import SimpleNamespace
from rankbench.launch.hosts.base import ThisMachine
from rankbench.launch.processes import Stop
from rankbench.launch.process import supervise
from rankbench.launch_spec import LaunchSpec

spec = LaunchSpec.read(Path(sys.argv[1]))
marks = [spec.work / f"script/hangs{rank}" for rank in range(spec.shape.ranks)]


def later():
    # The time limit is over when all ranks hang, however long that took.
    hang = all(mark.exists() for mark in marks)
    return monotonic() + hang * 2 * spec.options.time_limit


supervise.time = SimpleNamespace(monotonic=later, sleep=sleep)
supervise.run_launch(spec, ThisMachine(), Stop())
"""

# Name -> source, number of ranks, status and words of the reason.
FORMS: dict[str, tuple[str, int, str, list[str]]] = {
    "sleeps": (
        "import time\ndef train():\n    open('hangs0', 'w'), time.sleep(600)\ntrain()",
        1,
        "timeout",
        [
            "rank 0 at train.py:3 in train: open('hangs0', 'w'), time.sleep(600)",
            "rankbench has seen 0 backwards, 0 optimizer steps: call rankbench.hooks",
        ],
    ),
    "holds Python's lock": (
        "import re\nopen('hangs0', 'w'), re.match('(a+)+$', 40 * 'a' + 'b')",
        1,
        "timeout",
        ["rank 0 at train.py:2 in <module>: open('hangs0', 'w'), re.match("],
    ),
    "waits for another rank": (
        "import os, time\nfrom torch import distributed\n"
        "distributed.init_process_group('gloo')\n"
        "if os.environ['RANK'] == '0':\n"
        "    open('hangs0', 'w'), distributed.barrier()\n"
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "open('hangs1', 'w'), time.sleep(600)",
        2,
        "timeout",
        ["0 at train.py:5 in <module>: open('hangs0', 'w'), dist", "train.py:7"],
    ),
    "waits for a compiler that was ended": (
        "from torch.utils.file_baton import FileBaton\n"
        "FileBaton('lock').try_acquire()\n"
        "open('hangs0', 'w'), FileBaton('lock').wait()",
        1,
        "timeout",
        ["rank 0 at train.py:3 in <module>: open(", "remove the file `lock` of"],
    ),
    "crashes": (
        "import ctypes\nctypes.string_at(0)",
        1,
        "crashed",
        ["rank 0 was ended by SIGSEGV", "rank 0 at train.py:2 in <module>"],
    ),
    "is killed": (
        "import os\nprint('the last word', flush=True)\nos.kill(os.getpid(), 9)",
        1,
        "crashed",
        ["rank 0 was ended by SIGKILL", "rank 0 printed: the last word"],
    ),
    "ends": (
        "import os\nprint('no licence', flush=True)\nos._exit(3)",
        1,
        "crashed",
        ["rank 0 ended with exit code 3: no licence"],
    ),
    "starts its own ranks": (
        "from torch import distributed, multiprocessing as mp\n"
        "def rank(number):\n"
        "    distributed.init_process_group('gloo', 'nowhere', 2, number)\n"
        "if __name__ == '__main__':\n    mp.spawn(rank, nprocs=1)",
        1,
        "crashed",
        ["Process 0 terminated with", "train.py starts its own ranks, but"],
    ),
    "lacks a file": (
        "from torch import distributed, multiprocessing as mp\nopen('conf.json')\n"
        "mp.spawn(distributed.init_process_group)",
        1,
        "crashed",
        ["No such file or directory: 'conf.json'; at train.py:2", "under `files`"],
    ),
    "lacks a program": (
        "import subprocess\nsubprocess.run(['nvidia-no'])",
        1,
        "crashed",
        ["No such file or directory: 'nvidia-no'; at train.py:2", "on the PATH of"],
    ),
    "replaces itself": (
        "import os, sys\nos.execl(sys.executable, 'python', 'other.py')",
        1,
        "crashed",
        ["ScriptError: the script replaces its process by ", "set by env"],
    ),
    "lacks a variable": (
        "import os\nos.environ['MY_DATA_DIR']",
        1,
        "crashed",
        ["at train.py:2", "HF_HOME, ", ", MY_DATA_DIR", " of your environment did not"],
    ),
}
# Variables that are set where rankbench is started. It chooses threads by itself.
SET = {"MY_DATA_DIR": "/data", "HF_HOME": "/models", "MKL_NUM_THREADS": "3"}

Start = Callable[[str], tuple[Path, subprocess.Popen[bytes]]]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts a launch; those that hang are all started at once."""
    begun: dict[str, tuple[Path, subprocess.Popen[bytes]]] = {}

    def start(name: str) -> tuple[Path, subprocess.Popen[bytes]]:
        if name not in begun:
            folder = tmp_path_factory.mktemp("launch")
            begun[name] = folder, supervise(folder, *FORMS[name][:2])
        return begun[name]

    yield start
    # If it were killed, a rank that holds Python's lock would go on for ever.
    for _, supervisor in begun.values():
        supervisor.wait(timeout=200)


def supervise(folder: Path, source: str, ranks: int) -> subprocess.Popen[bytes]:
    script = folder / "own/train.py"
    script.parent.mkdir()
    script.write_text(source)
    values: dict[str, Any] = {
        **{"topology": f"1x{ranks}", "launcher": "manual", "epochs": None, "steps": 5},
        **{"own_strategy": {"file": "train.py"}},
        "script": {"args": "", "samples_per_step": "8"},
    }
    spec = make_spec(
        directory=folder / "launch",
        cell=make_cell(**values),
        shape=make_shape(ranks, cores_per_rank=0),
        data_dir=folder / "data",
        own={"strategy": script},
        python=sys.executable,
        heartbeat_grace=5.0,
        options=LaunchOptions(time_limit=600.0),
    )
    spec.work.mkdir(parents=True)
    spec.write()
    return subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, str(spec.file)],
        env={**os.environ, **SET},
    )


@pytest.mark.parametrize("name", FORMS)
def test_a_reason_has_its_evidence(start, name):
    for hanging in (one for one, form in FORMS.items() if form[2] == "timeout"):
        start(hanging)
    folder, supervisor = start(name)
    assert supervisor.wait(timeout=200) == 0
    record = read_record(folder / "launch/record.json")
    _, _, status, words = FORMS[name]
    assert record["status"] == status, record["reason"]
    for said in words:
        assert said in record["reason"]
    assert "NUM_THREADS" not in record["reason"]
    assert ("starts its own ranks" in record["reason"]) == (
        name == "starts its own ranks"
    )
