"""Replace names by placeholders, always the same one for the same name.

Names are host names, user names, accounts, addresses, job ids, UUIDs of GPUs and
absolute paths, in records, logs and every other text. The numbers of the tables do not
change.
"""

from __future__ import annotations

import gzip
import itertools
import json
import re
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rankbench.record import Layout, read_json

# The value of these keys is always a name, or a list of names.
KEYS = {
    "host": "host",
    "hosts": "host",
    "account": "account",
    "job_id": "job",
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
_HOME = re.compile(r"/(?:home|Users)/([\w.-]+)")


def collect_names(layout: Layout) -> dict[str, set[str]]:
    """Names by kind: `host`, `user`, `account`, `job`, `gpu`, `path`.

    Hosts are without their domain. Only paths whose parts could identify somebody are
    listed; other paths are recognised by their form.

    Raises:
        ValueError: the plan, a record or a claim is damaged; the message names it.
    """
    names: dict[str, set[str]] = {kind: set() for kind in (*KEYS.values(), "path")}
    names["path"].add(str(layout.root.absolute()))
    # These files name hosts and users; not all of them are published.
    paths = [layout.plan, *([layout.agenda] if layout.agenda.exists() else [])]
    for file in ("claim.json", "record.json"):
        paths += sorted(layout.records.rglob(file))
    for path in paths:
        for kind, name in _find(read_json(path)):
            names[kind].add(name)
    try:
        names["user"].add(layout.root.owner())
    except KeyError:
        pass  # The owner of the folder has no name on this machine.
    return {kind: found - COMMON for kind, found in names.items()}


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

# A short number is a job id only next to a word that says so.
_SAYS_JOB = r"(?i:(?:slurm|job|step)(?:[ _-]?id)?s?[ =:_-]{1,3})"
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
        ]

    def in_text(self, text: str) -> str:
        """The text with placeholders instead of names."""
        text = _PATH.sub(lambda match: self._hide_path(match[0]), text)
        # A path that the pattern does not recognise, for example behind an escaped line
        # break.
        for place in self._places:
            if place in text:
                text = text.replace(place, f"/{self._hide('path', place)}")
        text = ADDRESS.sub(lambda match: self._hide("address", match[0]), text)
        for kind, pattern in self._patterns:
            if pattern is not None:
                text = pattern.sub(partial(self._hide_word, kind), text)
        return text

    def in_value(self, value: Any, key: str = "") -> Any:
        """A JSON value with placeholders instead of names."""
        if key in KEPT:
            return value
        if isinstance(value, dict):
            return {
                self.in_text(name): self.in_value(item, name)
                for name, item in value.items()
            }
        if isinstance(value, list):
            return [self.in_value(item, key) for item in value]
        if not isinstance(value, str) or value in self._cells:
            return value
        if key in KEYS and value not in COMMON and not value.startswith("127."):
            if ADDRESS.fullmatch(value):
                return self._hide("address", value)
            kind = KEYS[key]
            return self._hide(
                kind, value.partition(".")[0] if kind == "host" else value
            )
        return self.in_text(value)

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
