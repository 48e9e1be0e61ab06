"""Authors and licence of a crate, from the CITATION.cff of the bundle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rocrate.model import ContextEntity
from rocrate.rocrate import ROCrate

from rankbench.results.crate.actions import compact

CITATION = "CITATION.cff"
LICENCES = "https://spdx.org/licenses/"


@dataclass(frozen=True, slots=True)
class Credit:
    """Who is to be named, and on which terms the bundle may be used.

    Attributes:
        title, version: of the software that measured.
        url: of its home; that of CITATION.cff in the crate if the file names none.
        authors, publishers: references to entities of the crate.
        licence: a reference to an entity, or words.
    """

    title: str
    version: str
    url: Any
    authors: Any
    publishers: Any
    licence: Any


def add_people(crate: ROCrate, root: Path) -> Credit:
    """Add authors and licence to a crate.

    Raises:
        ValueError: CITATION.cff is damaged; the message names it.
    """
    cited = _read(root / CITATION)
    home = _link(cited, "url", "repository-code") or {"@id": CITATION}
    authors, publishers = [], []
    for number, author in enumerate(cited.get("authors") or (), start=1):
        if not isinstance(author, dict):
            raise ValueError(
                f"{root / CITATION} is damaged: authors: expected mappings"
            )
        added = _add_author(crate, author, number, home)
        authors.append({"@id": added.id})
        if added.type == "Organization":
            publishers.append({"@id": added.id})
    return Credit(
        title=_text(cited.get("title") or "rankbench"),
        version=_text(cited.get("version") or "unknown"),
        url=home,
        authors=compact(authors),
        publishers=compact(publishers),
        licence=_add_licence(crate, cited.get("license")),
    )


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        cited = yaml.safe_load(path.read_bytes())
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{path} is damaged: {reason}") from error
    if not isinstance(cited, dict) or not isinstance(cited.get("authors"), list):
        raise ValueError(
            f"{path} is damaged: expected a mapping with a list of authors"
        )
    return cited


def _add_author(
    crate: ROCrate, author: Mapping[str, Any], number: int, home: Any
) -> ContextEntity:
    """A person has a family name, everything else is an organisation."""
    link = _link(author, "orcid", "website")
    identifier = link["@id"] if link else f"#author-{number}"
    if "family-names" not in author and "given-names" not in author:
        said = {"name": _text(author.get("name", "")), "url": link or home}
        return _add(crate, identifier, {"@type": "Organization", **said})
    given, family = (
        _text(author.get(f"{part}-names", "")) for part in ("given", "family")
    )
    said = {"@type": "Person", "name": f"{given} {family}".strip()}
    if "affiliation" in author:
        name = _text(author["affiliation"])
        body = {"@type": "Organization", "name": name, "url": home}
        place = _add(crate, f"#affiliation-{number}", body)
        said["affiliation"] = {"@id": place.id}
    return _add(crate, identifier, said)


def _add_licence(crate: ROCrate, named: Any) -> Any:
    """The licence by its SPDX identifier; words if CITATION.cff names none."""
    if (
        not isinstance(named, str)
        or not named.replace("-", "").replace(".", "").isalnum()
    ):
        return "not stated"
    said = {"@type": "CreativeWork", "name": named, "url": f"{LICENCES}{named}"}
    return {"@id": _add(crate, f"{LICENCES}{named}", said).id}


def _add(crate: ROCrate, identifier: str, said: dict[str, Any]) -> ContextEntity:
    return crate.add(ContextEntity(crate, identifier, properties=said))


def _link(said: Mapping[str, Any], *keys: str) -> dict[str, str] | None:
    """The first of these keys that is a web address."""
    for key in keys:
        value = said.get(key)
        if isinstance(value, str) and value.startswith(("https://", "http://")):
            return {"@id": value}
    return None


def _text(value: Any) -> str:
    return str(value)[:1000]
