"""Where results come from: a path that a user gave becomes a result directory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def open_results(path: Path) -> Iterator[Path]:
    """A result directory, with its plan and its records, for as long as it is needed.

    Raises:
        ValueError: the path leads to no results; the message says what was expected.
    """
    if not path.exists():
        raise ValueError(f"{path} does not exist: give a result directory")
    if not path.is_dir():
        raise ValueError(
            f"{path} is no result directory (one that holds plan.json and records)"
        )
    if not (path / "plan.json").exists():
        raise ValueError(f"{path} has no plan.json: no experiment was run here")
    yield path
