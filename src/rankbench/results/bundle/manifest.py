"""The manifest: SHA-256 and size of each file of a bundle, except signatures."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankbench.own_files import hash_file
from rankbench.record import make_printable, read_json
from rankbench.results.read.archive import is_plain_name

MANIFEST = "manifest.json"
MANIFEST_VERSION = 1
SIGNATURES = "signatures"
_SIGNATURE = re.compile(rf"{SIGNATURES}/[0-9a-f]{{16}}\.sig")


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault of a bundle.

    Attributes:
        file: below the bundle, or the bundle itself.
        what: the fault.
        where: line and column in the file; empty if it is about the whole file.
    """

    file: str
    what: str
    where: str = ""

    def __str__(self) -> str:
        place = f"{self.file}, {self.where}" if self.where else self.file
        text = f"{place}: {self.what}"
        return make_printable(text)


def list_files(root: Path) -> tuple[list[str], list[Finding]]:
    """Sorted names of the plain files below a folder; a finding for each other one."""
    names, odd = [], []
    for folder, folders, files in os.walk(root):
        for entry in [*folders, *files]:
            path = Path(folder, entry)
            name = path.relative_to(root).as_posix()
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                odd.append(Finding(name, "is a link or a device, not a file"))
            elif not is_plain_name(name):
                odd.append(Finding(name, "is no name of a file in a bundle"))
            elif entry in files:
                names.append(name)
    return sorted(names), odd


def is_signature(name: str) -> bool:
    """Whether a file of a bundle has the name of a signature."""
    return _SIGNATURE.fullmatch(name) is not None


def write_manifest(root: Path) -> None:
    """List the files of a folder."""
    names, odd = list_files(root)
    assert not odd
    (root / MANIFEST).write_bytes(_encode(filter(_is_listed, names), root))


def check_manifest(root: Path) -> list[Finding]:
    """Files that are missing, changed or not listed, and faults of the manifest itself.

    Raises:
        ValueError: there is no manifest: it is no bundle.
    """
    path = root / MANIFEST
    if not path.is_file() or path.is_symlink():
        raise ValueError(
            f"{root} is no bundle: it has no {MANIFEST}; `rankbench publish` makes one"
        )
    names, findings = list_files(root)
    try:
        listed = _read(path)
    except ValueError as error:
        return [*findings, Finding(MANIFEST, str(error).removeprefix(f"{path} "))]
    there = set(filter(_is_listed, names))
    for name in sorted(filter(is_signature, listed)):
        # The list must stay as it is if a signature is added.
        findings.append(Finding(name, "is a signature, but the manifest lists it"))
    for name in sorted({n for n in listed if not is_signature(n)} - there):
        findings.append(Finding(name, "is missing: the manifest lists it"))
    for name in sorted(there - listed.keys()):
        findings.append(Finding(name, "is not listed in the manifest"))
    for name in sorted(there & listed.keys()):
        if what := _compare(root / name, listed[name]):
            findings.append(Finding(name, what))
    if not findings and path.read_bytes() != _encode(there, root):
        findings.append(Finding(MANIFEST, "is not written as rankbench writes it"))
    return findings


def _is_listed(name: str) -> bool:
    return name != MANIFEST and not is_signature(name)


def _encode(names: Iterable[str], root: Path) -> bytes:
    files = {name: _describe(root / name) for name in sorted(names)}
    value = {"schema": MANIFEST_VERSION, "files": files}
    return (json.dumps(value, indent=1) + "\n").encode()


def _describe(path: Path) -> dict[str, Any]:
    return {"sha256": hash_file(path), "bytes": path.stat().st_size}


def _compare(path: Path, listed: Any) -> str | None:
    found = _describe(path)
    if not isinstance(listed, dict) or listed.keys() != found.keys():
        return "is not described by the manifest: expected sha256 and bytes"
    if found["bytes"] != listed["bytes"]:
        told = f"{listed['bytes']!r:.20}"
        return f"has {found['bytes']} bytes, the manifest says {told}: it was changed"
    if found["sha256"] != listed["sha256"]:
        return "has another SHA-256 than the manifest says: it was changed"
    return None


def _read(path: Path) -> dict[str, Any]:
    value = read_json(path)
    version = value.get("schema") if isinstance(value, dict) else None
    if type(version) is not int or version != MANIFEST_VERSION:
        raise ValueError(
            f"has manifest schema {version!r:.20}, this rankbench reads "
            f"{MANIFEST_VERSION}"
        )
    files = value.get("files")
    if not isinstance(files, dict) or value.keys() != {"schema", "files"}:
        raise ValueError("is damaged: expected the keys schema and files")
    return files
