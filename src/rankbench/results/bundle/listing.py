"""The list of a bundle's sections with their versions: sections.json."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from rankbench.record import read_json, write_json
from rankbench.results.crate.names import CRATE_NAME, OF_CRATE, VERSIONS
from rankbench.results.elements.section import Versions
from rankbench.results.sections import list_versions

LISTING = "sections.json"
LISTING_VERSION = 1

# A section has no files with other suffixes.
SUFFIXES = (".csv", ".json", ".md", ".tex", ".html", ".svg", ".png")

# Sections of a bundle that lists none: rankbench 0.1 of 2026-11. All are version 1.
# This list never changes, whatever becomes of the sections.
_UNLISTED = [
    "table",
    "bounds",
    "collectives",
    "ddp-timers",
    "environment",
    "epochs",
    "loading",
    "models",
    "pipeline",
    "profiles",
    "published",
    "reports",
    "utilisation",
    "variance",
    "plots/bandwidth",
    "plots/curves",
    "plots/efficiency",
    "plots/memory",
    "plots/microbatches",
    "plots/models",
    "plots/phases",
    "plots/profile",
    "plots/scaling",
    "plots/steps",
    "plots/time",
]

_NAME = re.compile(r"(plots/)?[a-z0-9]+([-_][a-z0-9]+)*")


class Listed(NamedTuple):
    """Versions of a section, as a bundle lists them."""

    numbers: int
    presentation: int


def list_ours() -> dict[str, Versions]:
    """Versions of all sections of this rankbench, and of its crate."""
    return {**list_versions(), CRATE_NAME: VERSIONS}


def write_listing(root: Path) -> None:
    """List all sections of this rankbench, even those that have nothing to show."""
    sections = {
        name: {"numbers": one.numbers, "presentation": one.presentation}
        for name, one in list_ours().items()
    }
    write_json(root / LISTING, {"schema": LISTING_VERSION, "sections": sections})


def read_listing(root: Path) -> dict[str, Listed]:
    """Name and versions of each section of a bundle.

    Raises:
        ValueError: the list is damaged or of another version; the message names it.
    """
    path = root / LISTING
    if not path.is_file():
        return dict.fromkeys(_UNLISTED, Listed(1, 1))
    value = read_json(path)
    version = value.get("schema") if isinstance(value, dict) else None
    if version != LISTING_VERSION:
        raise ValueError(
            f"{path} has sections schema {version!r:.20}, this rankbench reads "
            f"{LISTING_VERSION}"
        )
    sections = value.get("sections")
    if not isinstance(sections, dict) or value.keys() != {"schema", "sections"}:
        raise ValueError(f"{path} is damaged: expected the keys schema and sections")
    return {name: _read(path, name, one) for name, one in sections.items()}


def _read(path: Path, name: str, value: Any) -> Listed:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{path} is damaged: {name!r:.60} is no name of a section")
    if not isinstance(value, dict) or value.keys() != {"numbers", "presentation"}:
        said = "expected the keys numbers and presentation"
        raise ValueError(f"{path} is damaged: {name}: {said}")
    for key, one in value.items():
        if type(one) is not int or one < 1:
            said = f"expected a version such as 1, found {one!r:.20}"
            raise ValueError(f"{path} is damaged: {name}: {key}: {said}")
    return Listed(**value)


def assign(
    files: Iterable[str], sections: Mapping[str, Any]
) -> tuple[dict[str, set[str]], set[str]]:
    """The files of each of these sections, and the files that belong to none."""
    found: dict[str, set[str]] = {name: set() for name in sections}
    rest: set[str] = set()
    for file in files:
        owner = _find_owner(file, sections)
        (rest if owner is None else found[owner]).add(file)
    return found, rest


def _find_owner(file: str, sections: Mapping[str, Any]) -> str | None:
    """NAME.csv belongs to NAME, and so does NAME-of-a-cell.csv."""
    if file in OF_CRATE:
        return CRATE_NAME if CRATE_NAME in sections else None
    for suffix in SUFFIXES:
        stem = file.removesuffix(suffix)
        if stem != file:
            owners = [n for n in sections if stem == n or stem.startswith(f"{n}-")]
            if PurePosixPath(stem).parent.as_posix() in (".", "plots"):
                return max(owners, key=len, default=None)
    return None
