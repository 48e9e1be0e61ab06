"""Who may sign: OpenSSH's allowed_signers files, and lists of public keys."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rankbench.results.bundle.keys import TYPE, read_key

_LONGEST = 1024 * 1024  # bytes
_NAME = re.compile(r"[\w.@+-]+", re.ASCII)

_TIME = r'"\d{8}(?:\d{4}(?:\d{2})?)?Z?"'
_OPTION = rf'(?:cert-authority|namespaces="[^"]+"|valid-(?:after|before)={_TIME})'
_KEY = rf"(?P<kind>{TYPE.pattern})[ \t]+(?P<key>\S+)(?:[ \t].*)?"
_ENTRY = re.compile(
    r'(?P<principals>"[^"]+"|[^\s"]+)[ \t]+'
    rf"(?:(?i:{_OPTION}(?:,{_OPTION})*)[ \t]+)?{_KEY}",
    re.ASCII,
)
_PLAIN = re.compile(_KEY, re.ASCII)


@dataclass(frozen=True, slots=True)
class Signers:
    """Keys, and whose they are.

    Attributes:
        allowed: all of it as the contents of one allowed_signers file.
        keys: principal and key of each line, in order.
        wanted: principals that must have signed, each with its key file.
        source: names of the files, for messages.
    """

    allowed: str
    keys: Sequence[tuple[str, bytes]]
    wanted: Sequence[tuple[str, Path]]
    source: str

    def find(self, key: bytes) -> list[str]:
        """Principals whose key this is, each once."""
        found = [principal for principal, one in self.keys if one == key]
        return list(dict.fromkeys(found))


def read_signers(allowed: Path | None, users: Sequence[Path]) -> Signers | None:
    """Read the files that `rankbench verify` was given; None if there are none.

    Args:
        allowed: a file of the format allowed_signers, see `man ssh-keygen`.
        users: files with a public key per line, named `USER.keys`.

    Raises:
        ValueError: a line is damaged; the message names file and line. ssh-keygen
            itself silently ignores such a line.
        OSError: a file cannot be read.
    """
    files = [*([allowed] if allowed else []), *users]
    if not files:
        return None
    lines: list[str] = []
    keys: list[tuple[str, bytes]] = []
    wanted: list[tuple[str, Path]] = []
    for path in files:
        user = None if path is allowed else _name_user(path)
        if user is not None:
            wanted.append((user, path))
        there = len(lines)
        for number, line in _read_lines(path):
            try:
                principals, key, entry = _read(line, user)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from error
            lines.append(entry)
            keys += [(principal, key) for principal in principals]
        if len(lines) == there:
            raise ValueError(f"{path} has no public keys")
    source = ", ".join(map(str, files))
    return Signers("".join(f"{line}\n" for line in lines), keys, wanted, source)


def _name_user(path: Path) -> str:
    if not _NAME.fullmatch(path.stem):
        raise ValueError(
            f"{path}: the name of this file names the signer: expected letters, digits "
            "and any of . _ @ + -, as in jdoe.keys"
        )
    return path.stem


def _read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Number and text of each line that is neither empty nor a comment."""
    if not path.is_file():
        raise ValueError(f"{path} is no file: give public keys of signers")
    with path.open("rb") as file:
        data = file.read(_LONGEST + 1)
    if len(data) > _LONGEST:
        raise ValueError(f"{path} is longer than 1 MiB: give public keys of signers")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text: give public keys of signers") from error
    for number, line in enumerate(text.split("\n"), 1):
        if (stripped := line.strip()) and not stripped.startswith("#"):
            yield number, stripped


def _read(line: str, user: str | None) -> tuple[list[str], bytes, str]:
    """Principals, key and line of allowed_signers of an entry."""
    found = (_ENTRY if user is None else _PLAIN).fullmatch(line)
    if found is None or not line.replace("\t", " ").isprintable():
        said = "KEYTYPE KEY" if user else "PRINCIPALS [OPTIONS] KEYTYPE KEY"
        other = "" if user else " (for a list of public keys: --signer)"
        raise ValueError(f"expected {said}, found {line!r:.60}{other}")
    try:
        key = read_key(found["kind"], found["key"])
    except ValueError as error:
        raise ValueError(f"its key is damaged: {error}") from error
    if user is not None:
        return [user], key, f"{user} {found['kind']} {found['key']}"
    patterns = found["principals"].strip('"').split(",")
    # A pattern with ! excludes somebody, and names nobody.
    named = [one for one in patterns if one and not one.startswith("!")]
    if not named:
        raise ValueError("it names nobody")
    return named, key, line
