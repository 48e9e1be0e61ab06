"""The command that runs something inside an image."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankbench.launch.process.command import environment_for, exec_argv

pytestmark = pytest.mark.unit


def test_command() -> None:
    command = exec_argv(
        Path("/images/gloo-cpu.sif"),
        ["python3", "-m", "rankbench.rank", "/r/1/launch.json"],
        readable=[Path("/r/code/src"), Path("/data")],
        writable=[Path("/r/1")],
        home=Path("/r/1/home"),
        gpus=False,
    )
    assert command == [
        "apptainer",
        "--quiet",
        "exec",
        "--home=/r/1/home:/opt/rankbench/home",
        "--no-mount=cwd",
        "--bind=/r/code/src:/r/code/src:ro",
        "--bind=/data:/data:ro",
        "--bind=/r/1:/r/1",
        "--pwd=/opt/rankbench/home",
        "/images/gloo-cpu.sif",
        "python3",
        "-m",
        "rankbench.rank",
        "/r/1/launch.json",
    ]


@pytest.mark.parametrize("gpus", [False, True])
def test_the_driver_comes_in_only_for_gpus(gpus: bool) -> None:
    command = exec_argv(
        Path("i.sif"), ["x"], readable=[], writable=[], home=Path("h"), gpus=gpus
    )
    assert ("--nv" in command) is gpus


def test_environment_is_made_from_nothing() -> None:
    inherited = {
        "PATH": "/usr/bin",
        "HOME": "/u/me",
        "APPTAINER_TMPDIR": "/scratch",
        "PYTHONPATH": "/u/me/site",
        "LD_LIBRARY_PATH": "/opt/lib",
        "SECRET": "1",
    }
    found = environment_for({"OMP_NUM_THREADS": "1", "PYTHONPATH": "/r/src"}, inherited)
    assert found == {
        "PATH": "/usr/bin",
        "HOME": "/u/me",
        "APPTAINER_TMPDIR": "/scratch",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": "/r/src",
    }
