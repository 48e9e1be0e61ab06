"""Folders of Snakemakes that were killed are removed, and no others."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from filelock import FileLock

from rankbench.snakemake_fixes import sweep_temporary_folders

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
    with FileLock(runs / "rankbench.lock"):
        held = sweep_temporary_folders(workflow)
    assert not left.exists()
    assert all(path.exists() for path in (runs, foreign, elsewhere, own))
    assert held.is_locked
    held.release()


def test_snakemake_still_has_such_a_folder():
    module = pytest.importorskip("snakemake")
    source = Path(module.__file__).with_name("workflow.py").read_text()
    made = 'self._snakemake_tmp_dir = tempfile.TemporaryDirectory(prefix="snakemake")'
    assert made in source
