"""Each launch as an action: when, by whom, with what, and what it left."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from rocrate.model import ContextEntity
from rocrate.rocrate import ROCrate

from rankbench.record import Record

# Terms that the context of RO-Crate 1.1 lacks.
_TERMS = "https://w3id.org/ro/terms/workflow-run#"
TERMS = {"buildInstructions": "https://codemeta.github.io/terms/buildInstructions"} | {
    name: f"{_TERMS}{name}"
    for name in (
        *("ContainerImage", "SIFImage", "containerImage"),
        *("environment", "registry", "sha256"),
    )
}

COMPLETED, FAILED = (
    f"http://schema.org/{word}ActionStatus" for word in ("Completed", "Failed")
)

# Launches that are not timed, by the name of their folder.
_PURPOSES = {"gate": "check of the strategy", "profile": "profiled launch"}

Reference = dict[str, str]


def add_launches(
    crate: ROCrate, records: Mapping[str, Record], plan: Reference, url: Any, agent: str
) -> list[Reference]:
    """Add an action for each launch, with its folder, software, image and environment.

    Args:
        crate: the crate.
        records: folder of a launch in the bundle -> its record.
        plan: the input of all launches.
        url: home of the software that measured.
        agent: what stands for a person whose account no record names.

    Returns:
        References to the actions.
    """
    return [
        _add_launch(crate, folder, record, plan, url, agent)
        for folder, record in records.items()
    ]


def _add_launch(
    crate: ROCrate, folder: str, record: Record, plan: Reference, url: Any, agent: str
) -> Reference:
    number, what = PurePosixPath(folder).name, describe(folder)
    result = crate.add_dataset(
        dest_path=folder,
        properties={"name": f"records of {what}", "description": _list_parts(record)},
    )
    said: dict[str, Any] = {
        "@type": "CreateAction",
        "name": what,
        "description": f"launch {number} of {record_cell(folder)}: {record['status']}",
        "instrument": _add_software(crate, record, url),
        "object": plan,
        "result": {"@id": result.id},
        "agent": {"@id": agent},
        "actionStatus": COMPLETED if record["status"] == "ok" else FAILED,
    }
    said |= {
        key: time
        for key, time in (("startTime", started(record)), ("endTime", ended(record)))
        if time
    }
    if record["status"] != "ok" and record["reason"]:
        said["error"] = record["reason"]
    if variables := [*_add_variables(crate, record)]:
        said["environment"] = compact(variables)
    if image := record.get("image"):
        said["containerImage"] = _add_image(crate, image)
    identifier = f"#launch/{quote(folder.removeprefix('records/'))}"
    return {"@id": crate.add(ContextEntity(crate, identifier, properties=said)).id}


def describe(folder: str) -> str:
    """Words for a launch, from its folder `records/CELL/ATTEMPT/[PURPOSE/]LAUNCH`."""
    _, cell, attempt, *purpose, number = folder.split("/")
    kind = _PURPOSES[purpose[0]] if purpose else "launch"
    return f"{kind} {number} of {cell}, attempt {attempt}"


def compact(values: list[Any]) -> Any:
    """A list of one value as the value: RO-Crate recommends it."""
    return values[0] if len(values) == 1 else values


def record_cell(folder: str) -> str:
    return folder.split("/")[1]


def started(record: Record) -> str | None:
    return _time(record.get("started"))


def ended(record: Record) -> str | None:
    return _time(record.get("ended"))


def _time(value: Any) -> str | None:
    """Records come from anywhere: only a text is a time."""
    return value if isinstance(value, str) else None


def _list_parts(record: Record) -> str:
    steps = "record, logs, and the duration of each step by rank"
    return steps if "ranks" in record else "record and logs"


def _add_software(crate: ROCrate, record: Record, url: Any) -> Reference:
    """What measured, with the versions that it found; the same one only once."""
    code, software = record.get("code") or {}, record.get("software") or {}
    version = str(code.get("version") or "unknown")
    commit = str(code.get("commit") or "")
    needs = {
        name: str(software[name])
        for name in sorted(software)
        if isinstance(software[name], str)
    }
    key = _digest(str(code.get("rank")), version, commit, *needs, *needs.values())
    listed = ", ".join(f"{name} {value}" for name, value in needs.items())
    using = f" with {listed}" if listed else ""
    said = {
        "@type": "SoftwareApplication",
        "name": "rankbench",
        "description": f"rankbench, commit {commit[:12] or 'unknown'}{using}",
        "softwareVersion": version,
        "url": url,
    }
    home = url["@id"] if url["@id"].startswith("http") else ""
    return _add_once(crate, f"{home}#software-{key}", said)


def _add_variables(crate: ROCrate, record: Record) -> Iterator[Reference]:
    """Variables that the launcher got; the same setting only once."""
    variables = (record.get("launcher") or {}).get("env") or {}
    for name, value in sorted(variables.items()):
        said = {"@type": "PropertyValue", "name": name, "value": value}
        yield _add_once(crate, f"#variable-{_digest(name, value)}", said)


def _add_image(crate: ROCrate, image: Mapping[str, Any]) -> Reference:
    said = {
        "@type": "ContainerImage",
        "additionalType": {"@id": TERMS["SIFImage"]},
        "name": image["name"],
        "registry": "none: made from the definitions in code/",
    }
    if image["sha256"]:
        said["sha256"] = image["sha256"]
    key = _digest(image["name"], image["recipe"], image["sha256"] or "")
    return _add_once(crate, f"#image-{key}", said)


def _add_once(crate: ROCrate, identifier: str, said: dict[str, Any]) -> Reference:
    if crate.get(identifier) is None:
        crate.add(ContextEntity(crate, identifier, properties=said))
    return {"@id": identifier}


def _digest(*words: str) -> str:
    text = "\0".join(words)
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]
