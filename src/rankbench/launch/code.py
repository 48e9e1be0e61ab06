"""Which code measures: the commit, and a hash over the files that ranks execute."""

from __future__ import annotations

import hashlib
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1]


@cache
def rank_code_hash(package: Path = PACKAGE) -> str:
    """SHA-256 over names and contents of the rank-side files."""
    files = [package / name for name in ("cell.py", "environ.py", "record.py")]
    files += sorted((package / "rank").rglob("*.py"))
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(package)}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def describe_code() -> dict[str, Any]:
    """Commit, whether the tree was changed since, and the hash of the rank-side code.

    Outside a git checkout commit and dirty are None.
    """
    commit = _git("rev-parse", "HEAD")
    changes = _git("status", "--porcelain", "--untracked-files=no")
    return {
        "commit": commit,
        "dirty": None if changes is None else bool(changes),
        "rank": rank_code_hash(),
    }


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(PACKAGE), *arguments],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
