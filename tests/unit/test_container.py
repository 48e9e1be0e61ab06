"""The command that runs something inside an image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from factories import make_cell, make_spec
from rankbench.launch.images.apptainer import find_program
from rankbench.launch.process.command import environment_for, exec_argv
from rankbench.launch_spec import SOURCE

pytestmark = pytest.mark.unit


def enter(tmp_path: Path, **changes: Any) -> list[str]:
    spec = make_spec(
        directory=Path("/r/1"), data_dir=tmp_path, image={"file": "i.sif"}, **changes
    )
    return exec_argv(spec, ["python3", "-m", "rankbench.rank", "/r/1/launch.json"])


def test_command(tmp_path):
    own = {"model": Path("/own/net.py")}
    assert enter(tmp_path, binds=(Path("/opt/efa"),), own=own) == [
        "apptainer",
        "--quiet",
        "exec",
        "--home=/r/1/work/home:/opt/rankbench/home",
        "--no-mount=cwd",
        f"--bind={SOURCE}:{SOURCE}:ro",
        f"--bind={tmp_path}:{tmp_path}:ro",
        "--bind=/opt/efa:/opt/efa:ro",
        "--bind=/own:/own:ro",
        "--bind=/r/1:/r/1",
        "--pwd=/opt/rankbench/home",
        "i.sif",
        "python3",
        "-m",
        "rankbench.rank",
        "/r/1/launch.json",
    ]


def test_a_machine_may_have_only_the_older_name(tmp_path, monkeypatch):
    program = tmp_path / "singularity"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert enter(tmp_path)[0] == find_program() == "singularity"


@pytest.mark.parametrize(("device", "comes_in"), [("cpu", False), ("cuda", True)])
def test_the_driver_comes_in_only_for_gpus(tmp_path, device, comes_in):
    command = enter(tmp_path, cell=make_cell(device=device))
    assert ("--nv" in command) is comes_in


def test_environment_is_made_from_nothing():
    inherited = {
        "PATH": "/usr/bin",
        "HOME": "/u/me",
        "APPTAINER_TMPDIR": "/scratch",
        "SINGULARITY_BINDPATH": "/opt/site",
        # Switches that change what ranks see.
        "APPTAINER_CLEANENV": "1",
        "APPTAINER_CONTAINALL": "1",
        "SINGULARITY_NO_HOME": "1",
        "APPTAINERENV_OMP_NUM_THREADS": "7",
        "PYTHONPATH": "/u/me/site",
        "LD_LIBRARY_PATH": "/opt/lib",
        "SECRET": "1",
    }
    found = environment_for({"OMP_NUM_THREADS": "1", "PYTHONPATH": "/r/src"}, inherited)
    assert found == {
        "PATH": "/usr/bin",
        "HOME": "/u/me",
        "APPTAINER_TMPDIR": "/scratch",
        "SINGULARITY_BINDPATH": "/opt/site",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": "/r/src",
    }
