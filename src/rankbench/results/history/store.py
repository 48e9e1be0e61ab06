"""A store: a folder with one JSON file per run, named by the SHA-256 of its bytes.

It may lie in git or on a disk that several hosts share. Files are only added, and each
appears whole or not at all, so any number of writers and readers need no lock.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rankbench.record import write_atomically
from rankbench.results.compare.sides import Side, read_run

_NAME = re.compile(r"[0-9a-f]{64}\.json")

ADDED, KNOWN, RESTORED = "added", "known", "restored"


@dataclass(frozen=True, slots=True)
class Store:
    """The contents of a store.

    Attributes:
        runs: in order of the time of their first launch; their names are digests.
        damaged: a sentence about each file that is not used; it names the file.
    """

    folder: Path
    runs: Sequence[Side]
    damaged: Sequence[str]


def add_run(folder: Path, data: bytes) -> tuple[Path, str]:
    """Write a run into a store, which is made if there is none.

    Args:
        data: from `encode_run`.

    Returns:
        The file, and whether it was `ADDED`, was `KNOWN` already, or was damaged and
        is now `RESTORED`.

    Raises:
        OSError: the file cannot be written.
    """
    path = folder / f"{hashlib.sha256(data).hexdigest()}.json"
    found = path.exists()
    if found and path.read_bytes() == data:
        return path, KNOWN
    write_atomically(path, data)
    return path, RESTORED if found else ADDED


def read_store(folder: Path) -> Store:
    """Read all runs; damaged files are named and left out.

    Raises:
        ValueError: there is no store, or no run in it can be used.
    """
    if not folder.is_dir():
        raise ValueError(
            f"{folder} is no store: `rankbench history add RESULTS --store {folder}` "
            "makes one"
        )
    runs, damaged = [], []
    for path in sorted(folder.glob("*.json")):
        try:
            if not _NAME.fullmatch(path.name):
                raise ValueError(f"{path} is no run: its name is no digest")
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            if digest != path.stem:
                raise ValueError(
                    f"{path} is damaged: its digest is {digest[:12]}...: adding the "
                    "same results again restores it"
                )
            runs.append(replace(read_run(path), name=digest))
        except (ValueError, OSError) as error:
            damaged.append(str(error))
    if not runs:
        said = "; ".join(damaged) or "it is empty: `rankbench history add` fills it"
        raise ValueError(f"{folder} has no run: {said}")
    runs.sort(key=lambda run: (run.begun, run.name))
    return Store(folder, runs, damaged)
