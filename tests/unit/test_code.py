"""The hash over the code that ranks execute."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rankbench.launch.code import describe_code, freeze_code, rank_code_hash

pytestmark = pytest.mark.unit

FILES = [
    "cell.py",
    "cores.py",
    "record.py",
    "environ.py",
    "rank/train.py",
    "rank/models/lenet.py",
]


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


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose only strategy is `ddp`, not yet known to git."""
    for name in (
        "src/rankbench/rank/ddp.py",
        "containers/gloo.def",
        "results/table.md",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"# {name}\n")
    for name in ("cell.py", "cores.py", "environ.py", "record.py"):
        (tmp_path / "src/rankbench" / name).write_text("")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    rank_code_hash.cache_clear()
    return tmp_path


def commit(checkout: Path) -> None:
    git(checkout, "init")
    git(checkout, "add", ".")
    git(checkout, "commit", "-m", "one")


def test_commit_and_changes(checkout: Path) -> None:
    assert describe_code(checkout)["commit"] is None
    assert describe_code(checkout)["dirty"] is None
    commit(checkout)
    clean = describe_code(checkout)
    assert len(clean["commit"]) == 40
    assert clean["dirty"] is False
    (checkout / "results/table.md").write_text("# more\n")
    assert describe_code(checkout)["dirty"] is False
    (checkout / "src/rankbench/rank/zero.py").write_text("")
    assert describe_code(checkout)["dirty"] is True


def test_frozen_code_does_not_change(checkout: Path, tmp_path: Path) -> None:
    commit(checkout)
    place = tmp_path / "code"
    frozen = freeze_code(place, checkout)
    assert freeze_code(place, checkout) == frozen
    described = describe_code(frozen)
    assert described["dirty"] is False
    strategy = checkout / "src/rankbench/rank/ddp.py"
    before = strategy.read_text()
    strategy.write_text("# changed\n")
    assert (frozen / "src/rankbench/rank/ddp.py").read_text() == before
    assert describe_code(frozen) == described
    changed = freeze_code(place, checkout)
    assert changed != frozen
    assert describe_code(changed)["dirty"] is True
    assert not (frozen / "results").exists()


def test_a_copy_tells_how_to_cite(tmp_path: Path) -> None:
    assert (freeze_code(tmp_path) / "CITATION.cff").is_file()
