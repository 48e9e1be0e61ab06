"""The names in a result directory that identify people and machines."""

from __future__ import annotations

import re
from collections.abc import Iterator
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
    for path in _tell(layout):
        for kind, name in _find(read_json(path)):
            names[kind].add(name)
    try:
        names["user"].add(layout.root.owner())
    except KeyError:
        pass  # The owner of the folder has no name on this machine.
    return {kind: found - COMMON for kind, found in names.items()}


def _tell(layout: Layout) -> Iterator[Path]:
    """Files that name hosts and users; not all of them are published."""
    yield layout.plan
    if layout.agenda.exists():
        yield layout.agenda
    for name in ("claim.json", "record.json"):
        yield from sorted(layout.records.rglob(name))


def _find(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Kind and value of each name."""
    if key in KEPT:
        return
    if isinstance(value, dict):
        for name, one in value.items():
            # Hosts that a site lists are called `name`, like much else.
            yield from _find(one, "host" if (key, name) == ("hosts", "name") else name)
    elif isinstance(value, list):
        for one in value:
            yield from _find(one, key)
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
