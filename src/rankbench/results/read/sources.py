"""Turn a path that a user gave into a result directory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def open_results(path: Path) -> Iterator[Path]:
    """A result directory with its plan and records, for as long as it is needed.

    A bundle is unpacked into a temporary folder. It is not verified.

    Raises:
        ValueError: the path leads to no results; the message says what was expected.
    """
    if not path.exists():
        raise ValueError(f"{path} does not exist: give results or a bundle")
    if not path.is_dir():
        from rankbench.results.read.archive import unpack

        with tempfile.TemporaryDirectory(prefix="rankbench-") as folder:
            unpack(path, Path(folder))
            yield Path(folder)
        return
    if not (path / "plan.json").exists():
        raise ValueError(f"{path} has no plan.json: no experiment was run here")
    yield path
