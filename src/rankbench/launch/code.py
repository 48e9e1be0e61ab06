"""Which code measures: its commit, a hash of what ranks execute, a frozen copy."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from rankbench.record import read_json, write_json

PACKAGE = Path(__file__).resolve().parents[1]
PROJECT = PACKAGE.parents[1]

# What jobs read of the project. A frozen copy has these under the same names.
PARTS = ("src/rankbench", "workflow/schemas", "containers", "CITATION.cff")
DESCRIPTION = "code.json"


@cache
def rank_code_hash(package: Path = PACKAGE) -> str:
    """SHA-256 over names and contents of the rank-side files."""
    shared = ("cell.py", "cores.py", "environ.py", "record.py")
    files = [package / name for name in shared]
    files += sorted((package / "rank").rglob("*.py"))
    return hash_files(files, package)


def hash_files(files: Iterable[Path], root: Path) -> str:
    """SHA-256 over the names of files below a folder, and over their contents."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(root)}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def describe_code(project: Path = PROJECT) -> dict[str, Any]:
    """Commit, whether the tree was changed since, and the hash of the rank-side code.

    A frozen copy tells what held when it was made. Outside a git checkout commit and
    dirty are None.
    """
    if (project / DESCRIPTION).exists():
        described: dict[str, Any] = read_json(project / DESCRIPTION)
        return described
    commit = _git(project, "rev-parse", "HEAD")
    # Also files that git does not know: a new strategy is one.
    changes = _git(project, "status", "--porcelain", "--", *PARTS)
    return {
        "commit": commit,
        "dirty": None if changes is None else bool(changes),
        "rank": rank_code_hash(project / "src" / "rankbench"),
    }


def freeze_code(place: Path, project: Path = PROJECT) -> Path:
    """Copy what jobs run, so that an edit while they run changes none of them.

    Args:
        place: folder that keeps such copies, one for each state of the code.
        project: the folder that the code is taken from.

    Returns:
        The copy.
    """
    files = [
        path
        for part in PARTS
        for path in sorted((project / part, *(project / part).rglob("*")))
        if path.is_file() and path.suffix != ".pyc"
    ]
    copy = place / hash_files(files, project)[:16]
    if not copy.exists():
        place.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=".copy-", dir=place))
        beside.chmod(0o755)
        for path in files:
            destination = beside / path.relative_to(project)
            destination.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, destination)
        beside.rename(copy)
    # The same code may have been committed in the meantime.
    description = describe_code(project)
    write_json(copy / DESCRIPTION, description)
    return copy


def _git(project: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(project), *arguments],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
