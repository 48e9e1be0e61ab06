"""Folders of Snakemakes that were killed are removed, and no others."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from rankbench.launch.hosts.base import take_lock
from rankbench.project import sweep_temporary_folders

pytestmark = pytest.mark.unit


def folder(root: Path, name: str, *, ours: bool = True) -> Path:
    made = root / name
    made.mkdir()
    (made / "file").touch()
    if ours:
        (made / "rankbench.lock").touch()
    return made


def test_what_a_killed_snakemake_left(tmp_path):
    left = folder(tmp_path, "snakemakeabc")
    runs = folder(tmp_path, "snakemakedef")
    foreign = folder(tmp_path, "snakemakeghi", ours=False)
    elsewhere = folder(tmp_path, "other")
    own = folder(tmp_path, "snakemakejkl", ours=False)
    workflow = SimpleNamespace(_snakemake_tmp_dir=SimpleNamespace(name=str(own)))
    held = take_lock(runs / "rankbench.lock")
    assert held is not None
    with held, sweep_temporary_folders(workflow) as mine:
        assert not left.exists()
        assert all(path.exists() for path in (runs, foreign, elsewhere, own))
        assert take_lock(own / "rankbench.lock") is None
    assert mine.closed


def test_snakemake_still_has_such_a_folder():
    module = pytest.importorskip("snakemake")
    source = Path(module.__file__).with_name("workflow.py").read_text()
    made = 'self._snakemake_tmp_dir = tempfile.TemporaryDirectory(prefix="snakemake")'
    assert made in source
