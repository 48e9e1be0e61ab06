"""The hash over the code that ranks execute."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rankbench.launch import code
from rankbench.launch.code import describe_code, rank_code_hash

pytestmark = pytest.mark.unit

FILES = ["cell.py", "record.py", "environ.py", "rank/train.py", "rank/models/lenet.py"]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name in [*FILES, "cli.py", "launch/run.py", "results/table.py"]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}\n")
    return tmp_path


def fresh_hash(package: Path) -> str:
    return rank_code_hash.__wrapped__(package)


@pytest.mark.parametrize("name", FILES)
def test_rank_side_code_changes_it(package: Path, name: str) -> None:
    before = fresh_hash(package)
    assert fresh_hash(package) == before
    (package / name).write_text("# changed\n")
    assert fresh_hash(package) != before


def test_a_new_and_a_renamed_file_change_it(package: Path) -> None:
    before = fresh_hash(package)
    (package / "rank" / "new.py").write_text("")
    with_new = fresh_hash(package)
    (package / "rank" / "new.py").rename(package / "rank" / "newer.py")
    assert len({before, with_new, fresh_hash(package)}) == 3


@pytest.mark.parametrize("name", ["cli.py", "launch/run.py", "results/table.py"])
def test_other_code_does_not(package: Path, name: str) -> None:
    before = fresh_hash(package)
    (package / name).write_text("# changed\n")
    (package / "rank" / "train.pyc").write_bytes(b"")
    assert fresh_hash(package) == before


def git(folder: Path, *arguments: str) -> None:
    me = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    command = ["git", "-C", str(folder), *me, *arguments]
    subprocess.run(command, check=True, capture_output=True)


def test_commit_and_changes(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "PACKAGE", package)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(package.parent))
    assert describe_code()["commit"] is None
    assert describe_code()["dirty"] is None
    git(package, "init")
    git(package, "add", ".")
    git(package, "commit", "-m", "one")
    clean = describe_code()
    assert len(clean["commit"]) == 40
    assert clean["dirty"] is False
    (package / "cell.py").write_text("# changed\n")
    assert describe_code()["dirty"] is True
