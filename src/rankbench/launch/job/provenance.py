"""The code that measures: its commit, a hash of the rank-side code, a frozen copy.

The code is a checkout, an installed wheel, or a frozen copy, which has the layout of a
checkout.
"""

from __future__ import annotations

import filecmp
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

from rankbench import __version__
from rankbench.assets import OF_JOBS, list_code
from rankbench.cell import Cell, list_variants
from rankbench.launch.hosts.base import output_of
from rankbench.own_files import files_below, hash_files
from rankbench.record import read_json, write_json

PACKAGE = Path(__file__).resolve().parents[2]

# Files that exist both in a checkout and in a frozen copy.
PLACE = Path("src/rankbench")
LINKS = PLACE / "assets"
DESCRIPTION = "code.json"

# Kind of a variant -> its folder on the ranks' side.
VARIANTS = {"strategy": "strategies", "model": "models", "data": "data"}
_IMPORT = re.compile(r"from rankbench\.?([\w.]*) import (\([^)]*\)|.*)")


def rank_code_hash(cell: Cell | None = None, package: Path = PACKAGE) -> str:
    """SHA-256 over names and contents of the files of ranks; of a cell, of its own.

    A cell has one strategy, model and data set, and what these import. A file of the
    user's own may import any of its kind.
    """
    own = cell.own_digests if cell else VARIANTS
    named = {
        VARIANTS[kind]: getattr(cell, kind) for kind in VARIANTS if kind not in own
    }
    return _hash_code(package, **named)


@cache
def _hash_code(package: Path, **named: str) -> str:
    """The hash of what ranks import, with only this variant of each folder."""
    rank = package / "rank"
    others = {
        rank / folder / f"{other}.py"
        for folder, name in named.items()
        for other in list_variants(rank / folder)
        if other != name
    }
    found: set[Path] = set()
    waiting = [path for path in rank.rglob("*.py") if path not in others]
    while waiting:
        path = waiting.pop()
        if path not in found and path.is_file():
            found.add(path)
            for module, names in _IMPORT.findall(path.read_text("utf-8")):
                place = package.joinpath(*module.split("."))
                waiting.append(place.with_suffix(".py"))
                waiting += [place / f"{name}.py" for name in re.findall(r"\w+", names)]
    return hash_files({str(path.relative_to(package)): path for path in sorted(found)})


def describe_code(package: Path = PACKAGE) -> dict[str, Any]:
    """Version, commit, whether the tree has changed since, hash of the rank-side code.

    A frozen copy describes the code at the time of the copy. Outside a git checkout,
    commit and dirty are None.
    """
    project = package.parents[1]
    if (project / DESCRIPTION).exists():
        described: dict[str, Any] = read_json(project / DESCRIPTION)
        return described
    commit, changes = None, None
    # A wheel may be installed below a checkout of another project.
    git = partial(output_of, "git", "-C", str(project))
    if git("ls-files", "--error-unmatch", f"{PLACE}/__init__.py") is not None:
        commit = git("rev-parse", "HEAD")
        # Files that git does not track count as well, such as a new strategy.
        parts = (str(PLACE), *OF_JOBS)
        changes = git("status", "--porcelain", "--", *parts)
    return {
        "version": __version__,
        "commit": commit,
        "dirty": None if changes is None else bool(changes),
        "rank": rank_code_hash(package=package),
    }


def freeze_code(place: Path, package: Path = PACKAGE) -> Path:
    """Copy the code that jobs run, so that later edits do not affect them.

    Files that another run of the project has copied are linked, because clusters limit
    the number of files.

    Args:
        place: folder that keeps such copies of a run, one for each state of the code.
        package: the folder of the package that is copied.

    Returns:
        The copy.
    """
    own, linked = list_code(package)
    files = {f"{PLACE}/{name}": path for name, path in own.items()} | linked
    copy = place / hash_files(files)[:16]
    if not copy.exists():
        place.mkdir(parents=True, exist_ok=True)
        twin = next(
            place.parents[2].glob(f"*/{place.parent.name}/{place.name}/{copy.name}"),
            None,
        )
        with tempfile.TemporaryDirectory(prefix=".copy-", dir=place) as folder:
            beside = Path(folder) / copy.name
            for place_in_copy, path in files.items():
                destination = beside / place_in_copy
                destination.parent.mkdir(parents=True, exist_ok=True)
                with suppress(OSError):
                    if twin and filecmp.cmp(twin / place_in_copy, path, shallow=False):
                        os.link(twin / place_in_copy, destination)
                if not destination.exists():
                    shutil.copy2(path, destination)
            for name in OF_JOBS:
                (beside / LINKS / name).symlink_to(Path("../../..", name))
            beside.rename(copy)
    # The same code may have been committed meanwhile.
    write_json(copy / DESCRIPTION, describe_code(package))
    return copy


def freeze_files(place: Path, files: Mapping[str, Path], digest: str) -> None:
    """Copy files of the user's own, so that later edits do not affect jobs.

    Args:
        place: the folder of the copy; it is complete if it exists.
        files: name in it -> file.
        digest: of the files when the plan was made.

    Raises:
        ValueError: a file was changed since.
    """
    if place.exists():
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".copy-", dir=place.parent) as beside:
        copy = Path(beside) / place.name
        for name, path in files.items():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy / name)
        if hash_files(files_below(copy)) != digest:
            names = ", ".join(files)
            raise ValueError(f"{names}: changed while the run began: run again")
        copy.rename(place)
