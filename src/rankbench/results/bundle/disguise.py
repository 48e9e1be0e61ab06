"""Replace names by placeholders, always the same one for the same name.

Names are host names, user names, accounts, mail and network addresses, job ids,
partitions, UUIDs of GPUs, absolute paths and values of variables, in records, logs and
every other text. The numbers of the tables do not change.
"""

from __future__ import annotations

import gzip
import ipaddress
import itertools
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rankbench.cell import Cell
from rankbench.record import Layout, Record, read_json
from rankbench.results.read.archive import list_files, refuse_links
from rankbench.say import make_printable

# The value of these keys is always a name, or a list of names.
KEYS = {
    "host": "host",
    "hosts": "host",
    "account": "account",
    "job_id": "job",
    "partition": "partition",
    "USER": "user",
    "LOGNAME": "user",
    "uuid": "gpu",
}

# Tables and comparisons depend on these values: they are not searched for names.
KEPT = {
    *("cell", "cell_id", "cell_hash", "id", "hash", "shape", "schema", "status"),
    *("cause", "phases", "marks", "software", "kind", "purpose", "recipe", "sha256"),
}

# These identify nobody.
COMMON = {"", "localhost", "root", "nobody", "rankbench"}

ADDRESS = re.compile(r"(?<![\w.])(?!127\.|0\.)(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\d)")
_HEX = "[0-9A-Fa-f]"
# Names that their form gives away, by kind; a GUID is a number of InfiniBand.
_FORMS = {
    "gpu": rf"\b(?:GPU|MIG)-{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}\b",
    "mail": r"\b[\w.+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+\b",
    "mac": rf"(?<![\w:]){_HEX}{{2}}(?::{_HEX}{{2}}){{5,19}}(?![\w:])",
    "guid": rf"(?<![\w:])(?:0x{_HEX}{{16}}|{_HEX}{{4}}(?::{_HEX}{{4}}){{3}})(?![\w:])",
}
_MAYBE_IPV6 = re.compile(rf"(?<![\w:.])(?:{_HEX}{{0,4}}:){{2,7}}{_HEX}{{0,4}}(?![\w:])")
_HOME = re.compile(r"/(?:home|Users)/([\w.-]+)")

# Variables that say how to train, by the beginning of their name.
PUBLIC = ("NCCL_", "UCX_", "FI_", "GLOO_", "TORCH_NCCL_", "OMP_")
# Variables, and keys of texts, that may be secrets.
_SECRET = rf"(?!{'|'.join(PUBLIC)})[A-Z0-9_]*(?:TOKEN|KEY|SECRET|PASSW)[A-Z0-9_]*"
_TELLS = re.compile(rf"\b({_SECRET})(\"?\s*[=:]\s*[\"']?)(?!value\d)([^\s\"',}}]+)")


def collect_names(layout: Layout) -> dict[str, set[str]]:
    """Names by kind: `host`, `user`, `account`, `job`, `partition`, `gpu`, `path`.

    Hosts are without their domain. Only paths whose parts could identify somebody are
    listed; other paths are recognised by their form.

    Raises:
        ValueError: the plan, a record or a claim is damaged; the message names it.
    """
    names: dict[str, set[str]] = {
        kind: set() for kind in (*KEYS.values(), "path", "value")
    }
    names["path"].add(str(layout.root.absolute()))
    # These files name hosts and users; not all of them are published.
    ours = ("claim.json", "record.json", layout.plan.name, layout.agenda.name)
    for name in refuse_links(layout.root):
        if Path(name).name in ours:
            for kind, found in _find(read_json(layout.root / name)):
                names[kind].add(found)
    try:
        names["user"].add(layout.root.owner())
    except KeyError:
        pass  # The owner of the folder has no name on this machine.
    return {kind: found - COMMON for kind, found in names.items()}


def describe_names(layout: Layout, *, anonymised: bool) -> Iterator[str]:
    """Lines about names of people and machines, and about what may be secrets.

    Args:
        layout: a bundle that is about to be written.
        anonymised: whether its names are placeholders.
    """
    names = collect_names(layout)
    for kind in () if anonymised else ("host", "user", "account", "partition"):
        if names[kind]:
            listed = _shorten(sorted(names[kind]))
            yield f"it names {kind}s: {listed} (--anonymise replaces them)"
    secrets: dict[str, str] = {}
    for name in list_files(layout.root)[0]:
        if Path(name).suffix in (".json", ".log", ".yaml", ".py"):
            text = (layout.root / name).read_text(errors="replace")
            for match in _TELLS.finditer(text):
                secrets.setdefault(match[1], f"{match[1]} in {name}")
    if secrets:
        how = "" if anonymised else "; --anonymise replaces values in records and logs"
        yield f"it may tell secrets: {_shorten([*secrets.values()])}{how}"


def _shorten(names: list[str], most: int = 6) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return make_printable(", ".join(names[:most]) + more)


def _find(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Kind and value of each name."""
    if key in KEPT:
        return
    if isinstance(value, dict):
        for name, item in value.items():
            # Hosts that a site lists are called `name`, like much else.
            yield from _find(item, "host" if (key, name) == ("hosts", "name") else name)
    elif isinstance(value, list):
        for item in value:
            yield from _find(item, key)
    elif isinstance(value, str):
        yield from (("user", name) for name in _HOME.findall(value))
        if re.fullmatch(_SECRET, key) and len(value) >= _LONG_ID:
            yield "value", value
        if key == "HOME":
            yield "user", Path(value).name
            yield "path", value
        elif KEYS.get(key) == "host":
            if not ADDRESS.fullmatch(value) and not value.startswith("127."):
                yield "host", value.partition(".")[0]
        elif key in KEYS:
            yield KEYS[key], value


_PATH = re.compile(
    # The path must not be part of a relative path or of a URL.
    r"(?:(?<=file://)|(?<=-[IL])|(?<![\w./~<$}\\-]))"
    r"/[\w.+@~%=,-]+(?:/+[\w.+@~%=,-]*)*"
)
# The end of a path that names a file of a library, and says nothing about the machine.
_LIBRARY = re.compile(r"/(?:site-packages|lib/python3[\d.]*)/.*")
_RECORD = re.compile(r"/records/([^/]+)(?:/.*)?")

# A short number is a job id only next to a word that says so, and any word a partition.
_SAYS_JOB = r"(?i:(?:slurm|job|step)(?:[ _-]?id)?s?[ =:_-]{1,3})"
_SAYS_PARTITION = r"(?:[\w-]*(?i:partition)s?['\"]?[ =:]{1,3}['\"]?|-p[ =])"
_PARTITION_LINE = re.compile(r"^[ -]*partition:.*$", re.MULTILINE)
_HASH = re.compile(r"\b[0-9a-f]{16}\b")
_LONG_ID = 5  # digits
_NO_FRACTION = r"(?<!\d\.)"


class Disguise:
    """The placeholders that were given so far: `host1` is the first host that occurs.

    Args:
        names: by kind, see `collect_names`.
        cells: ids of cells, which stay in paths.
    """

    def __init__(
        self, names: Mapping[str, Collection[str]], cells: Collection[str]
    ) -> None:
        self._cells = cells
        # Of a cell that names a partition -> of the same cell with a placeholder.
        self._hashes: dict[str, str] = {}
        self._given: dict[tuple[str, str], str] = {}
        self._counts: dict[str, Iterator[int]] = {}
        jobs = names["job"]
        long = [job for job in jobs if len(job) >= _LONG_ID]
        # `/root` identifies nobody.
        places = (path for path in names["path"] if path.count("/") > 1)
        self._places = sorted(places, key=len, reverse=True)
        self._patterns = [
            ("host", _words(names["host"], behind=r"(?:\.[A-Za-z][\w-]*)*")),
            ("user", _words(names["user"])),
            ("account", _words(names["account"])),
            ("gpu", _words(names["gpu"])),
            ("job", _words(jobs, before=_SAYS_JOB)),
            ("job", _words(long, before=_NO_FRACTION)),
            ("value", _words(names["value"])),
            ("partition", _words(names["partition"], before=_SAYS_PARTITION)),
        ]
        self._partitions = _words(names["partition"])
        for partition in sorted(names["partition"]):
            self._hide("partition", partition)

    @classmethod
    def of(cls, layout: Layout, plan: Record) -> Disguise:
        """The placeholders for a result directory, none of them given yet."""
        planned, names = plan["cells"], collect_names(layout)
        cells = {entry["hash"]: Cell.from_dict(entry["cell"]) for entry in planned}
        for entry in planned:
            if queue := sorted(cells[entry["hash"]].queue.keys() - {"partition"}):
                keys = " and ".join(queue)
                raise ValueError(
                    f"--anonymise: the id {entry['id']} names {keys}, and ids stay: "
                    f"measure without {keys}, or publish without --anonymise"
                )
        names["partition"] |= {c.partition for c in cells.values() if c.partition}
        disguise = cls(names, {entry["id"] for entry in planned})
        for digest, cell in cells.items():
            if cell.partition is not None:
                hidden = disguise._hide("partition", cell.partition)
                disguise._hashes[digest] = replace(cell, partition=hidden).hash()
        return disguise

    def in_identity(self, text: str) -> str:
        """A text with ids and hashes of cells; only partitions are replaced."""
        if self._partitions is None:
            return text
        text = _HASH.sub(lambda match: self._hashes.get(match[0], match[0]), text)
        hide = partial(self._hide_word, "partition")
        kind, pattern = self._patterns[-1]
        assert pattern is not None, kind
        words = self._partitions
        text = _PARTITION_LINE.sub(lambda line: words.sub(hide, line[0]), text)
        return pattern.sub(hide, text)

    def in_text(self, text: str) -> str:
        """The text with placeholders instead of names."""
        text = _PATH.sub(lambda match: self._hide_path(match[0]), text)
        # A path that the pattern does not recognise, for example behind an escaped line
        # break.
        for place in self._places:
            if place in text:
                text = text.replace(place, f"/{self._hide('path', place)}")
        for kind, form in _FORMS.items():
            text = re.sub(form, partial(self._hide_match, kind), text)
        text = _MAYBE_IPV6.sub(self._hide_ipv6, text)
        text = ADDRESS.sub(lambda match: self._hide("address", match[0]), text)
        text = _TELLS.sub(
            lambda match: f"{match[1]}{match[2]}{self._hide('value', match[3])}", text
        )
        for kind, pattern in self._patterns:
            if pattern is not None:
                text = pattern.sub(partial(self._hide_word, kind), text)
        return self.in_identity(text)

    def in_value(self, value: Any, key: str = "") -> Any:
        """A JSON value with placeholders instead of names."""
        if key in KEPT:
            is_named = self._partitions is not None
            return (
                json.loads(self.in_identity(json.dumps(value))) if is_named else value
            )
        if isinstance(value, dict):
            inner = self._in_variable if key == "env" else self.in_value
            return {
                self.in_text(name): inner(item, name) for name, item in value.items()
            }
        if isinstance(value, list):
            return [self.in_value(item, key) for item in value]
        if not isinstance(value, str):
            return value
        if value in self._cells:
            return self.in_identity(value)
        if value and re.fullmatch(_SECRET, key):
            return self._hide("value", value)
        if key in KEYS and value not in COMMON and not value.startswith("127."):
            if ADDRESS.fullmatch(value):
                return self._hide("address", value)
            kind = KEYS[key]
            return self._hide(
                kind, value.partition(".")[0] if kind == "host" else value
            )
        return self.in_text(value)

    def _in_variable(self, value: str, name: str) -> Any:
        """The value of a variable. Only paths, numbers and settings may identify none.

        Args:
            value, name: of the variable.
        """
        is_public = name.startswith(PUBLIC) or not re.search("[A-Za-z]", value)
        if is_public or name in KEYS or "/" in value or re.fullmatch(_SECRET, name):
            return self.in_value(value, name)
        return self._hide("value", value)

    def in_file(self, source: Path, target: Path) -> None:
        """Copy a file with placeholders; steps have no names and stay as they are.

        Raises:
            ValueError: it is damaged; the message names it.
        """
        if source.suffix == ".npz":
            target.write_bytes(source.read_bytes())
        elif source.suffix == ".json":
            value = self.in_value(read_json(source))
            target.write_text(json.dumps(value, indent=1) + "\n")
        elif source.suffix == ".gz":
            try:
                trace = json.loads(gzip.decompress(source.read_bytes()))
            except (OSError, EOFError, ValueError) as error:
                raise ValueError(f"{source} is damaged: {error}") from error
            text = json.dumps(self.in_value(trace))
            target.write_bytes(gzip.compress(text.encode(), mtime=0))
        else:
            text = source.read_bytes().decode(errors="replace")
            target.write_bytes(self.in_text(text).encode())

    def _hide(self, kind: str, name: str) -> str:
        if (kind, name) not in self._given:
            count = self._counts.setdefault(kind, itertools.count(1))
            self._given[kind, name] = f"{kind}{next(count)}"
        return self._given[kind, name]

    def _hide_match(self, kind: str, match: re.Match[str]) -> str:
        return self._hide(kind, match[0])

    def _hide_ipv6(self, match: re.Match[str]) -> str:
        try:
            address = ipaddress.ip_address(match[0])
        except ValueError:
            return match[0]
        is_ours = address.is_loopback or address.is_unspecified
        return match[0] if is_ours else self._hide("address", match[0])

    def _hide_word(self, kind: str, match: re.Match[str]) -> str:
        return match["before"] + self._hide(kind, match["name"])

    def _hide_path(self, path: str) -> str:
        kept = _RECORD.search(path)
        if kept is None or kept[1] not in self._cells:
            kept = _LIBRARY.search(path)
        place = path[: kept.start()] if kept else path.rstrip("/.,")
        return f"/{self._hide('path', place)}{path[len(place) :]}" if place else path


def _words(
    names: Collection[str], *, before: str = "", behind: str = ""
) -> re.Pattern[str] | None:
    """A pattern that finds each name as a word of its own."""
    if not names:
        return None
    found = "|".join(map(re.escape, sorted(names, key=lambda n: (-len(n), n))))
    start = rf"(?<![A-Za-z0-9_-])(?P<before>{before})"
    return re.compile(rf"{start}(?P<name>{found}){behind}(?![A-Za-z0-9_-])")
