"""The crate of a bundle, from its other files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from rocrate.model import ContextEntity
from rocrate.rocrate import ROCrate

from rankbench.record import Record
from rankbench.results.crate.actions import (
    COMPLETED,
    FAILED,
    TERMS,
    Reference,
    add_launches,
    compact,
    ended,
    started,
)
from rankbench.results.crate.names import README
from rankbench.results.crate.people import CITATION, Credit, add_people

# The recommended rules of Workflow RO-Crate ask for this version of RO-Crate.
_BASE = "1.1"
_WORKFLOW_CRATE = "https://w3id.org/workflowhub/workflow-ro-crate/1.0"
_PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": ("Process Run Crate", "0.5"),
    "https://w3id.org/ro/wfrun/workflow/0.5": ("Workflow Run Crate", "0.5"),
    _WORKFLOW_CRATE: ("Workflow RO-Crate", "1.0"),
}
_BIOSCHEMAS = "https://bioschemas.org/profiles/ComputationalWorkflow/1.0-RELEASE"
_SNAKEMAKE = "https://snakemake.readthedocs.io"

_FORMATS = {
    ".cff": "application/yaml",
    ".csv": "text/csv",
    ".def": "text/plain",
    ".html": "text/html",
    ".json": "application/json",
    ".md": "text/markdown",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".tex": "application/x-tex",
    ".yaml": "application/yaml",
    ".zst": "application/zstd",
}

# Described one by one; of the other files, their folders are.
_FOLDERS = ("own", "requests", "cells", "logs", "failures")

_EXPERIMENT, _ABOUT, _TABLE = "experiment.yaml", "about.json", "table.csv"


def make_crate(
    root: Path,
    names: Sequence[str],
    plan: Record,
    records: Mapping[str, Record],
    *,
    anonymised: bool,
) -> bytes | None:
    """The contents of ro-crate-metadata.json; None if no launch has ended.

    Args:
        root: the bundle.
        names: its files, sorted, without README, crate, manifest and signatures.
        plan: of the bundle.
        records: folder of a launch in the bundle -> its record.
        anonymised: whether names of people are placeholders.

    Raises:
        ValueError: CITATION.cff is damaged; the message names it.
    """
    times = sorted(filter(None, map(ended, records.values())))
    if not times:
        return None
    crate = ROCrate(version=_BASE)
    crate.metadata.extra_terms.update(TERMS)
    crate.metadata["conformsTo"] = [
        {"@id": f"https://w3id.org/ro/crate/{_BASE}"},
        {"@id": _WORKFLOW_CRATE},
    ]
    credit = add_people(crate, root)
    _describe_root(crate, plan, times[-1], credit)
    workflow = _add_workflow(crate, names, credit)
    crate.add_file(
        dest_path=README,
        properties={
            "name": README,
            "encodingFormat": _FORMATS[".md"],
            "about": {"@id": "./"},
        },
    )
    for name in names:
        if crate.get(name) is None:
            _add_file(crate, name)
    _connect(crate, workflow, names)
    agent = _add_agent(crate, records, anonymised=anonymised)
    run = _add_run(crate, workflow, names, records, agent)
    launches = add_launches(crate, records, {"@id": "plan.json"}, credit.url, agent)
    crate.root_dataset["mentions"] = [run, *launches]
    text = json.dumps(crate.metadata.generate(), indent=1, ensure_ascii=False)
    return (text + "\n").encode(errors="replace")


def _describe_root(
    crate: ROCrate, plan: Record, published: str, credit: Credit
) -> None:
    experiment = plan["experiment"]
    profiles = []
    for identifier, (name, version) in _PROFILES.items():
        said = {"@type": "CreativeWork", "name": name, "version": version}
        profiles.append({"@id": crate.add(ContextEntity(crate, identifier, said)).id})
    root = crate.root_dataset
    title = f"rankbench results: {experiment['name']}"
    root["name"] = title
    root["description"] = str(experiment.get("description") or title)
    root["conformsTo"] = profiles
    root["license"] = credit.licence
    root["author"] = credit.authors
    if credit.publishers:
        root["publisher"] = credit.publishers
    # The end of the last launch: the time of writing would give other bytes.
    root["datePublished"] = published


def _add_file(crate: ROCrate, name: str) -> None:
    """A file, or the folder of many that are alike; launches are added elsewhere."""
    first = name.partition("/")[0]
    if first == "records":
        return
    if first != name and first in _FOLDERS:
        if crate.get(f"{first}/") is None:
            crate.add_dataset(dest_path=first, properties={"name": first})
        return
    suffix = PurePosixPath(name).suffix
    said: dict[str, Any] = {
        "name": name,
        "encodingFormat": _FORMATS.get(suffix, "text/plain"),
    }
    if name == CITATION:
        said["description"] = "how to cite rankbench"
    crate.add_file(dest_path=name, properties=said)


def _add_workflow(crate: ROCrate, names: Sequence[str], credit: Credit) -> Any:
    """The Snakefile that ran, or the experiment if the bundle has none."""
    found = [name for name in names if PurePosixPath(name).name == "Snakefile"]
    name = found[-1] if found else _EXPERIMENT
    language: dict[str, Any] = {
        "@type": "ComputerLanguage",
        "name": "rankbench experiment",
    }
    if found:
        language |= {"name": "Snakemake", "url": {"@id": _SNAKEMAKE}}
    written_in = crate.add(ContextEntity(crate, "#language", language))
    # Hosts, software and images of the run, and how the images are made.
    definitions = [name for name in names if name.endswith(".def")]
    said = {
        "@type": ["File", "SoftwareSourceCode", "ComputationalWorkflow", "HowTo"],
        "name": "rankbench: measures each cell of an experiment",
        "version": credit.version,
        "url": credit.url,
        "author": credit.authors,
        "license": credit.licence,
        "encodingFormat": "text/plain",
        "conformsTo": {"@id": _BIOSCHEMAS},
        "programmingLanguage": {"@id": written_in.id},
        "buildInstructions": compact([{"@id": n} for n in (_ABOUT, *definitions)]),
    }
    workflow = crate.add_file(dest_path=name, properties=said)
    crate.root_dataset["mainEntity"] = workflow
    return workflow


def _connect(crate: ROCrate, workflow: Any, names: Sequence[str]) -> None:
    """Say which file is the input of the workflow, and which its output."""
    for way, name in (("input", _EXPERIMENT), ("output", _TABLE)):
        if name in names:
            said = {
                "@type": "FormalParameter",
                "name": PurePosixPath(name).stem,
                "additionalType": "File",
                "workExample": {"@id": name},
            }
            parameter = crate.add(ContextEntity(crate, f"#{way}", said))
            crate.get(name)["exampleOfWork"] = {"@id": parameter.id}
            workflow[way] = {"@id": parameter.id}


def _add_agent(
    crate: ROCrate, records: Mapping[str, Record], *, anonymised: bool
) -> str:
    """The account that measured, or words if the bundle hides it."""
    homes = [
        str(((record.get("launcher") or {}).get("env") or {}).get("HOME", ""))
        for record in records.values()
    ]
    accounts = sorted({PurePosixPath(home).name for home in homes} - {""})
    known = accounts and not anonymised
    name = ", ".join(accounts) if known else "a person whom the bundle does not name"
    said = {"@type": "Person", "name": name}
    return str(crate.add(ContextEntity(crate, "#operator", said)).id)


def _add_run(
    crate: ROCrate,
    workflow: Any,
    names: Sequence[str],
    records: Mapping[str, Record],
    agent: str,
) -> Reference:
    """The run of the whole experiment."""
    tables = [n for n in names if "/" not in n and n.endswith((".csv", ".md"))]
    inputs = [_EXPERIMENT, *(["own/"] if crate.get("own/") else [])]
    good = any(record["status"] == "ok" for record in records.values())
    said: dict[str, Any] = {
        "@type": "CreateAction",
        "name": "run of the experiment",
        "description": f"{len(records)} launches, described one by one",
        "instrument": {"@id": workflow.id},
        "object": compact([{"@id": name} for name in inputs]),
        "result": compact([{"@id": name} for name in ("plan.json", *tables)]),
        "agent": {"@id": agent},
        "actionStatus": COMPLETED if good else FAILED,
    }
    starts = [*filter(None, map(started, records.values()))]
    ends = [*filter(None, map(ended, records.values()))]
    if starts and ends:
        said |= {"startTime": min(starts), "endTime": max(ends)}
    return {"@id": crate.add(ContextEntity(crate, "#run", said)).id}
