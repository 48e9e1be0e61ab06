"""Whether the links of a crate stay within its bundle, whoever wrote it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from rankbench.record import read_json
from rankbench.results.crate.names import CRATE
from rankbench.results.read.archive import is_plain_name

_DATA = {"File", "Dataset", "MediaObject", "Directory"}
_WEB = ("https://", "http://")

# Maximum number of faults that are listed.
_MOST = 20


def check_links(root: Path) -> list[str]:
    """Return what is wrong with the links of a crate; none is opened or fetched.

    Files and folders must be below the bundle. Persons, licences and the like may have
    a web address.

    Raises:
        ValueError: the crate is not valid JSON; the message names it.
    """
    path = root / CRATE
    if not path.is_file():
        return []
    crate = read_json(path)
    graph = crate.get("@graph") if isinstance(crate, dict) else None
    if not isinstance(graph, list) or not all(isinstance(one, dict) for one in graph):
        return ["is damaged: expected an object with a list @graph of objects"]
    return list(islice(_find_faults(graph), _MOST))


def _find_faults(graph: list[dict[str, Any]]) -> Iterator[str]:
    for entity in graph:
        identifier, kinds = entity.get("@id"), entity.get("@type")
        if not isinstance(identifier, str):
            yield f"is damaged: an entity has the @id {identifier!r:.60}"
            continue
        is_data = bool(
            _DATA.intersection(kinds if isinstance(kinds, list) else [kinds])
        )
        for link in (identifier, *_find_links(entity)):
            is_web = link.startswith(_WEB)
            if is_web and not (is_data and link == identifier):
                continue
            if is_web or not _stays(link):
                yield f"has a link that leads out of the bundle: {link!r:.200}"


def _find_links(value: Any) -> Iterator[str]:
    """Every reference in the properties of an entity."""
    if isinstance(value, dict):
        for key, one in value.items():
            if key in ("@id", "contentUrl", "url") and isinstance(one, str):
                yield one
            else:
                yield from _find_links(one)
    elif isinstance(value, list):
        for one in value:
            yield from _find_links(one)


def _stays(link: str) -> bool:
    """Whether it leads to the crate, to an entity in it, or to a file below it."""
    path = unquote(link.partition("#")[0])
    return path in ("", "./") or (
        ":" not in path and is_plain_name(path.removesuffix("/"))
    )
