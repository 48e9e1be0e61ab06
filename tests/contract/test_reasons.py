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
from rankbench.schema import load_yaml

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

FORMS = load_yaml(Path(__file__).parents[1] / "unit/cases/reasons.yaml")
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
            form = FORMS[name]
            begun[name] = folder, supervise(folder, form["source"], form["ranks"])
        return begun[name]

    yield start
    # If it were killed, a rank that holds Python's lock would go on for ever.
    for _, supervisor in begun.values():
        supervisor.wait(timeout=600)


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
    for hanging in (n for n, form in FORMS.items() if form["status"] == "timeout"):
        start(hanging)
    folder, supervisor = start(name)
    assert supervisor.wait(timeout=600) == 0
    record = read_record(folder / "launch/record.json")
    assert record["status"] == FORMS[name]["status"], record["reason"]
    for said in FORMS[name]["said"]:
        assert said in record["reason"]
    assert "NUM_THREADS" not in record["reason"]
    assert ("starts its own ranks" in record["reason"]) == (
        name == "starts its own ranks"
    )
