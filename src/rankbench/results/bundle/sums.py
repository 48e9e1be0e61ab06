"""SHA256SUMS: the SHA-256 of each file of a bundle, except signatures.

`sha256sum --check SHA256SUMS` reads it as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rankbench.own_files import hash_file
from rankbench.record import make_printable
from rankbench.results.read.archive import list_files

SUMS = "SHA256SUMS"
SIGNATURES = "signatures"
_SIGNATURE = re.compile(rf"{SIGNATURES}/[0-9a-f]{{16}}\.sig")
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")


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
        return make_printable(f"{place}: {self.what}")


def is_signature(name: str) -> bool:
    """Whether a file of a bundle has the name of a signature."""
    return _SIGNATURE.fullmatch(name) is not None


def write_sums(root: Path) -> None:
    """List the files of a folder."""
    names, odd = list_files(root)
    assert not odd
    (root / SUMS).write_bytes(_encode(_hash_files(root, names)))


def check_sums(root: Path) -> tuple[list[str], list[Finding]]:
    """The files of a bundle, and which are missing, changed, or not listed.

    Raises:
        ValueError: there is no list: it is no bundle.
    """
    path = root / SUMS
    if not path.is_file() or path.is_symlink():
        raise ValueError(
            f"{root} is no bundle: it has no {SUMS}; publish it first (rankbench "
            f"publish {root})"
        )
    names, odd = list_files(root)
    findings = [Finding(name, what) for name, what in odd.items()]
    if findings:
        # A link may lead anywhere, so nothing is read.
        return [], findings
    lines = path.read_bytes().decode(errors="replace").split("\n")
    matches = [_LINE.fullmatch(line) for line in lines[:-1]]
    listed = {match[2]: match[1] for match in matches if match}
    there = _hash_files(root, names)
    for name in sorted(listed.keys() | there.keys()):
        if is_signature(name):
            # The list must stay as it is if a signature is added.
            findings.append(Finding(name, f"is a signature, but {SUMS} lists it"))
        elif name not in there:
            findings.append(Finding(name, f"is missing: {SUMS} lists it"))
        elif name not in listed:
            findings.append(Finding(name, f"is not listed in {SUMS}"))
        elif there[name] != listed[name]:
            said = f"has another SHA-256 than {SUMS} says: it was changed"
            findings.append(Finding(name, said))
    if not findings and path.read_bytes() != _encode(there):
        findings.append(Finding(SUMS, "is not written as rankbench writes it"))
    return names, findings


def _hash_files(root: Path, names: Iterable[str]) -> dict[str, str]:
    listed = (name for name in names if name != SUMS and not is_signature(name))
    return {name: hash_file(root / name) for name in listed}


def _encode(hashes: Mapping[str, str]) -> bytes:
    lines = [f"{hashes[name]}  {name}\n" for name in sorted(hashes)]
    return "".join(lines).encode()
