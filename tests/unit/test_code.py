"""The hash over the code that ranks execute."""

from __future__ import annotations

import ast
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from factories import make_cell
from rankbench import __version__
from rankbench.assets import OF_JOBS
from rankbench.cell import Cell
from rankbench.launch.job.provenance import (
    PACKAGE,
    _hash_code,
    describe_code,
    freeze_code,
    rank_code_hash,
)

pytestmark = pytest.mark.unit

# Modules of the package root that ranks import.
SHARED = sorted(
    {
        f"{node.module.removeprefix('rankbench.')}.py"
        for file in (PACKAGE / "rank").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom)
        if node.module and node.module.startswith("rankbench.")
        if not node.module.startswith("rankbench.rank")
    }
)
FILES = [*SHARED, "hooks.py", "rank/training/loop.py", "rank/models/lenet.py"]
OTHERS = ["cli.py", "launch/job/measure.py", "results/render/tables.py"]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    ignored = shutil.ignore_patterns("__pycache__", "assets")
    return shutil.copytree(PACKAGE, tmp_path / "rankbench", ignore=ignored)


def fresh_hash(package: Path, cell: Cell | None = None) -> str:
    _hash_code.cache_clear()
    return rank_code_hash(cell, package)


@pytest.mark.parametrize("name", FILES)
def test_rank_side_code_changes_it(package, name):
    before = fresh_hash(package)
    assert fresh_hash(package) == before
    (package / name).write_text("# changed\n")
    assert fresh_hash(package) != before


def test_a_new_and_a_renamed_file_change_it_and_other_code_does_not(package):
    before = fresh_hash(package)
    for name in OTHERS:
        (package / name).write_text("# changed\n")
    (package / "rank" / "training" / "loop.pyc").write_bytes(b"")
    assert fresh_hash(package) == before
    (package / "rank" / "new.py").write_text("")
    with_new = fresh_hash(package)
    (package / "rank" / "new.py").rename(package / "rank" / "newer.py")
    assert len({before, with_new, fresh_hash(package)}) == 3


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("strategies/ddp.py", True),  # zero1 imports it
        ("strategies/base.py", True),
        ("models/_libraries.py", True),
        ("training/loop.py", True),
        ("strategies/zero1.py", True),
        ("models/lenet.py", True),
        ("strategies/local_sgd.py", False),
        ("strategies/new_one.py", False),
        ("models/lstm.py", False),
        ("data/mnist.py", False),
    ],
)
def test_a_cell_has_the_code_that_it_imports(package, name, changes):
    cell = make_cell(strategy="zero1", model="lenet", data="digits")
    before = fresh_hash(package, cell)
    own = replace(cell, own_strategy={"file": "mine.py", "digest": "d" * 64})
    own_before = fresh_hash(package, own)
    with open(package / "rank" / name, "a") as file:
        file.write("# changed\n")
    assert (fresh_hash(package, cell) != before) is changes
    # A strategy of the user's own may import any.
    may = changes or name.startswith("strategies/")
    assert (fresh_hash(package, own) != own_before) is may


def git(folder: Path, *arguments: str) -> None:
    me = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    command = ["git", "-C", str(folder), *me, *arguments]
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose only strategy is `ddp`, not yet known to git."""
    for name in (
        "src/rankbench/rank/ddp.py",
        "src/rankbench/assets/__init__.py",
        "src/rankbench/__init__.py",
        "containers/gloo.def",
        "workflow/rules/cell.smk",
        "Snakefile",
        "CITATION.cff",
        "results/table.md",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"# {name}\n")
    for name in OF_JOBS:
        link = tmp_path / "src/rankbench/assets" / name
        link.symlink_to(Path("../../..", name))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    _hash_code.cache_clear()
    return tmp_path


def commit(checkout: Path) -> None:
    git(checkout, "init")
    git(checkout, "add", ".")
    git(checkout, "commit", "-m", "one")


def describe(project: Path) -> dict:
    return describe_code(project / "src/rankbench")


def test_commit_and_changes(checkout):
    assert describe(checkout)["commit"] is None
    assert describe(checkout)["dirty"] is None
    commit(checkout)
    clean = describe(checkout)
    assert len(clean["commit"]) == 40
    assert clean["dirty"] is False
    (checkout / "results/table.md").write_text("# more\n")
    assert describe(checkout)["dirty"] is False
    (checkout / "src/rankbench/rank/zero.py").write_text("")
    assert describe(checkout)["dirty"] is True


def test_a_wheel_below_another_checkout_has_no_commit(checkout):
    commit(checkout)
    installed = checkout / "venv/src/rankbench"
    shutil.copytree(checkout / "src/rankbench", installed)
    described = describe_code(installed)
    assert (described["commit"], described["dirty"]) == (None, None)
    assert described["version"] == __version__


@pytest.mark.parametrize("installed", [False, True])
def test_frozen_code_does_not_change(checkout, tmp_path, installed):
    package = checkout / "src/rankbench"
    if installed:  # An installed package has no links and no project around it.
        package = tmp_path / "site-packages/rankbench"
        shutil.copytree(checkout / "src/rankbench", package)
    else:
        commit(checkout)
    place = tmp_path / "run/work/code"
    frozen = freeze_code(place, package)
    assert freeze_code(place, package) == frozen
    # Another run of the project has the same files, but not one that was changed there.
    (frozen / "Snakefile").write_text("# changed\n")
    other = freeze_code(tmp_path / "other/work/code", package)
    (frozen / "Snakefile").write_text("# Snakefile\n")
    for name, linked in (("src/rankbench/rank/ddp.py", True), ("Snakefile", False)):
        assert (other / name).samefile(frozen / name) is linked
        assert (other / name).read_bytes() == (frozen / name).read_bytes()
    described = describe(frozen)
    assert described["dirty"] is (None if installed else False)
    strategy = package / "rank/ddp.py"
    before = strategy.read_text()
    strategy.write_text("# changed\n")
    assert (frozen / "src/rankbench/rank/ddp.py").read_text() == before
    assert describe(frozen) == described
    changed = freeze_code(place, package)
    assert changed != frozen
    assert describe(changed)["dirty"] is (None if installed else True)
    assert not (frozen / "results").exists()
    # Both sources give the same layout, in which the assets are found.
    assert (frozen / "containers/gloo.def").is_file()
    for asset in ("containers/gloo.def", "workflow/rules/cell.smk", "Snakefile"):
        assert (frozen / "src/rankbench/assets" / asset).read_text() == f"# {asset}\n"


def test_a_copy_tells_how_to_cite(tmp_path):
    assert (freeze_code(tmp_path) / "CITATION.cff").is_file()
