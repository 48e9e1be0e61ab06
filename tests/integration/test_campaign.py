"""The campaign for a machine with a GPU goes its whole way on CPUs, on bare Python."""

from __future__ import annotations

import json
import os
import re
import subprocess
import venv
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.equipment]

ROOT = Path(__file__).resolve().parents[2]
WHEELS = ROOT / "tests/gpu/wheels.txt"
PARTS = ("ceilings", "cells", "gates", "loops", "launches", "estimates")


def make_bare_python(folder: Path) -> Path:
    """A Python with torch, what torch requires, and the listed wheels; all as links."""
    venv.create(folder, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    listed = [line for line in WHEELS.read_text().split("\n") if line[:1] not in "#"]
    wanted, seen = ["torch"], set()
    while wanted:
        name = wanted.pop()
        if name in seen or (found := find(name)) is None:
            continue
        seen.add(name)
        link(found, packages)
        for needed in found.requires or []:
            if "extra ==" not in needed:
                wanted.append(re.split(r"[^\w.-]", needed)[0])
    for name in listed:
        if found := find(name):
            link(found, packages)
    return folder / "bin/python"


def find(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None  # for another platform, or an extra


def link(package: Distribution, folder: Path) -> None:
    for top in {file.parts[0] for file in package.files or []} - {"..", "__pycache__"}:
        if not (folder / top).exists():
            (folder / top).symlink_to(Path(str(package.locate_file(top))))


def test_a_dry_run_goes_through_every_part(tmp_path):
    python = make_bare_python(tmp_path / "bare")
    done = subprocess.run(
        [
            python,
            "tests/gpu/campaign.py",
            "one",
            "--dry-run",
            "--out",
            tmp_path / "out",
        ],
        cwd=ROOT,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
    )
    logs = [log.read_text()[-30000:] for log in (tmp_path / "out").glob("*.log")]
    assert done.returncode == 0, "\n".join([done.stdout, done.stderr, *logs])
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    assert summary["failed"] == []
    assert all(summary[part] for part in PARTS)
    # Only packages are missing, which do not come with torch.
    absent = {"torchao", "deepspeed", "horovod"}
    assert {text.split()[-4] for text in summary["left_out"]} <= absent
