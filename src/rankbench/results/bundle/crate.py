"""The RO-Crate of a bundle: ``ro-crate-metadata.json``, a Workflow Run Crate.

It says in JSON-LD what other files of the bundle say in their own words: the workflow,
its inputs and outputs, and each launch as an action. Everything in it follows from
these files, so the same bundle gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from rankbench.record import Record
from rankbench.results.bundle.manifest import list_files
from rankbench.schema import load_yaml

CRATE, README = OF_CRATE = "ro-crate-metadata.json", "README.md"

# For people who open an unpacked bundle; profiles of crates recommend such a file.
_README_TEXT = """\
# Results measured by rankbench

This folder is a bundle: everything that is needed to check a table of results. Begin
with [answer.md](answer.md) or `report.html`.

- `rankbench verify FOLDER` compares all files with `manifest.json`, and derives the
  tables again from the plan and the records.
- `rankbench replay FOLDER` measures the same cells on another machine, and compares.
- `ro-crate-metadata.json` describes the files and launches for programs (RO-Crate).
- `CITATION.cff` says how to cite the software that measured.
"""

_CONTEXT = "https://w3id.org/ro/crate/1.1/context"
# Terms that the context of RO-Crate 1.1 lacks.
_WFRUN = "https://w3id.org/ro/terms/workflow-run#"
_WFRUN_TERMS = (
    *("ContainerImage", "SIFImage", "containerImage"),
    *("environment", "registry", "sha256"),
)
_TERMS = {"buildInstructions": "https://codemeta.github.io/terms/buildInstructions"}
_TERMS |= {name: f"{_WFRUN}{name}" for name in _WFRUN_TERMS}

# The recommended rules of Workflow RO-Crate ask for version 1.1 of RO-Crate.
_WORKFLOW_CRATE = "https://w3id.org/workflowhub/workflow-ro-crate/1.0"
_CONFORMS = [{"@id": "https://w3id.org/ro/crate/1.1"}, {"@id": _WORKFLOW_CRATE}]
_PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": ("Process Run Crate", "0.5"),
    "https://w3id.org/ro/wfrun/workflow/0.5": ("Workflow Run Crate", "0.5"),
    _WORKFLOW_CRATE: ("Workflow RO-Crate", "1.0"),
}
_BIOSCHEMAS = "https://bioschemas.org/profiles/ComputationalWorkflow/1.0-RELEASE"
_SNAKEMAKE = "https://snakemake.readthedocs.io"
_LICENCES = "https://spdx.org/licenses/"
_COMPLETED, _FAILED = (
    f"http://schema.org/{word}ActionStatus" for word in ("Completed", "Failed")
)

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
_FOLDERS = ("requests", "work")

_EXPERIMENT, _ABOUT, _TABLE = "work/experiment.yaml", "about.json", "table.csv"
_CITATION = "CITATION.cff"

# Launches that are not timed, by the name of their folder.
_PURPOSES = {"gate": "check of the strategy", "profile": "profiled launch"}

Reference = dict[str, str]
# Identifier -> the entity with its other properties.
Graph = dict[str, dict[str, Any]]


def write_crate(
    root: Path, plan: Record, records: Mapping[str, Record], *, anonymised: bool
) -> None:
    """Write the crate of a bundle whose other files are there, and its README.

    A bundle without launches describes no run, and has none.

    Args:
        root: the bundle.
        plan, records: of the bundle; records by the folder of the launch.
        anonymised: whether names of people are placeholders.
    """
    if not any(record.get("ended") for record in records.values()):
        return
    (root / README).write_text(_README_TEXT)
    names, _ = list_files(root)
    cited = load_yaml(root / _CITATION)
    home = {"@id": cited.get("repository-code") or _CITATION}
    experiment = plan["experiment"]
    title = f"rankbench results: {experiment['name']}"
    graph: Graph = {
        "./": {
            "@type": "Dataset",
            # The time of writing would give other bytes.
            "datePublished": max(
                r["ended"] for r in records.values() if r.get("ended")
            ),
            "name": title,
            "description": str(experiment.get("description") or title),
            "conformsTo": [{"@id": name} for name in _PROFILES],
        },
        CRATE: {
            "@type": "CreativeWork",
            "conformsTo": _CONFORMS,
            "about": {"@id": "./"},
        },
    }
    for identifier, (name, version) in _PROFILES.items():
        said = {"@type": "CreativeWork", "name": name, "version": version}
        graph[identifier] = said
    credit = _add_authors(graph, cited, home)
    graph["./"] |= credit
    credit.pop("publisher", None)
    workflow = _add_workflow(graph, names, {**credit, "url": home}, cited)
    for name in names:
        _add_file(graph, name)
    graph[README]["about"] = {"@id": "./"}
    for way, name in (("input", _EXPERIMENT), ("output", _TABLE)):
        graph[f"#{way}"] = {
            "@type": "FormalParameter",
            "name": PurePosixPath(name).stem,
            "additionalType": "File",
            "workExample": {"@id": name},
        }
        graph[name]["exampleOfWork"] = graph[workflow][way] = {"@id": f"#{way}"}
    homes = [_variables(record).get("HOME", "") for record in records.values()]
    accounts = sorted({PurePosixPath(str(home)).name for home in homes} - {""})
    known = accounts and not anonymised
    whose = ", ".join(accounts) if known else "a person whom the bundle does not name"
    graph["#operator"] = {"@type": "Person", "name": whose}
    _add_run(graph, workflow, names, records)
    launches = [
        _add_launch(graph, folder, record, home) for folder, record in records.items()
    ]
    graph["./"]["mentions"] = [{"@id": "#run"}, *launches]
    graph["./"]["hasPart"] = [
        {"@id": identifier}
        for identifier, said in graph.items()
        if identifier != "./"
        and (said["@type"] in ("File", "Dataset") or identifier == workflow)
    ]
    crate = {
        "@context": [_CONTEXT, _TERMS],
        "@graph": [{"@id": name, **said} for name, said in graph.items()],
    }
    text = json.dumps(crate, indent=1, ensure_ascii=False) + "\n"
    (root / CRATE).write_bytes(text.encode(errors="replace"))


def _add_authors(
    graph: Graph, cited: Mapping[str, Any], home: Reference
) -> dict[str, Any]:
    """Add authors and licence; returns the properties that refer to them."""
    authors, publishers = [], []
    for number, author in enumerate(cited["authors"], start=1):
        reference = {"@id": f"#author-{number}"}
        authors.append(reference)
        if "name" in author:
            said = {"@type": "Organization", "name": author["name"], "url": home}
            publishers.append(reference)
        else:
            name = f"{author['given-names']} {author['family-names']}"
            said = {"@type": "Person", "name": name}
        graph[reference["@id"]] = said
    url = f"{_LICENCES}{cited['license']}"
    graph[url] = {"@type": "CreativeWork", "name": cited["license"], "url": url}
    credit = {"license": {"@id": url}, "author": _compact(authors)}
    return credit | ({"publisher": _compact(publishers)} if publishers else {})


def _add_workflow(
    graph: Graph,
    names: Sequence[str],
    credit: Mapping[str, Any],
    cited: Mapping[str, Any],
) -> str:
    """The Snakefile that ran, or the experiment if the bundle has none."""
    found = [name for name in names if PurePosixPath(name).name == "Snakefile"]
    name = found[-1] if found else _EXPERIMENT
    language: dict[str, Any] = {"name": "rankbench experiment"}
    if found:
        language = {"name": "Snakemake", "url": {"@id": _SNAKEMAKE}}
    graph["#language"] = {"@type": "ComputerLanguage", **language}
    # Hosts, software and images of the run, and how the images are made.
    definitions = [name for name in names if name.endswith(".def")]
    graph[quote(name)] = {
        "@type": ["File", "SoftwareSourceCode", "ComputationalWorkflow", "HowTo"],
        "name": "rankbench: measures each cell of an experiment",
        "version": str(cited["version"]),
        **credit,
        "encodingFormat": "text/plain",
        "conformsTo": {"@id": _BIOSCHEMAS},
        "programmingLanguage": {"@id": "#language"},
        "buildInstructions": _compact([{"@id": n} for n in (_ABOUT, *definitions)]),
    }
    graph["./"]["mainEntity"] = {"@id": quote(name)}
    return quote(name)


def _add_file(graph: Graph, name: str) -> None:
    """A file, or the folder of many that are alike; launches are added elsewhere."""
    first, slash, _ = name.partition("/")
    if first == "records" or quote(name) in graph:
        return
    if slash and first in _FOLDERS and name != _EXPERIMENT:
        graph[f"{first}/"] = {"@type": "Dataset", "name": first}
        return
    suffix = PurePosixPath(name).suffix
    graph[quote(name)] = {
        "@type": "File",
        "name": name,
        "encodingFormat": _FORMATS.get(suffix, "text/plain"),
    }
    if name == _CITATION:
        graph[name]["description"] = "how to cite rankbench"


def _add_run(
    graph: Graph, workflow: str, names: Sequence[str], records: Mapping[str, Record]
) -> None:
    """The run of the whole experiment."""
    tables = [n for n in names if n.startswith(("answer.", "table.", "sections/"))]
    inputs = [_EXPERIMENT, *(["work/"] if "work/" in graph else [])]
    good = any(record["status"] == "ok" for record in records.values())
    starts, ends = (
        [r[key] for r in records.values() if r.get(key)] for key in ("started", "ended")
    )
    graph["#run"] = {
        "@type": "CreateAction",
        "name": "run of the experiment",
        "description": f"{len(records)} launches, described one by one",
        "instrument": {"@id": workflow},
        "object": _compact([{"@id": name} for name in inputs]),
        "result": _compact([{"@id": name} for name in ("plan.json", *tables)]),
        "agent": {"@id": "#operator"},
        "actionStatus": _COMPLETED if good else _FAILED,
    } | ({"startTime": min(starts), "endTime": max(ends)} if starts and ends else {})


def _add_launch(
    graph: Graph, folder: str, record: Record, home: Reference
) -> Reference:
    """Add an action for a launch, with its folder, software, image and environment.

    Args:
        graph: receives them.
        folder: `records/CELL/ATTEMPT/[PURPOSE/]LAUNCH`.
        record: of the launch.
        home: of the software that measured.
    """
    _, cell, attempt, *purpose, number = folder.split("/")
    kind = _PURPOSES[purpose[0]] if purpose else "launch"
    what = f"{kind} {number} of {cell}, attempt {attempt}"
    steps = ", logs, and the duration of each step by rank"
    graph[f"{quote(folder)}/"] = {
        "@type": "Dataset",
        "name": f"records of {what}",
        "description": f"record{steps if 'ranks' in record else ' and logs'}",
    }
    said: dict[str, Any] = {
        "@type": "CreateAction",
        "name": what,
        "description": f"launch {number} of {cell}: {record['status']}",
        "instrument": _add_software(graph, record, home),
        "object": {"@id": "plan.json"},
        "result": {"@id": f"{quote(folder)}/"},
        "agent": {"@id": "#operator"},
        "actionStatus": _COMPLETED if record["status"] == "ok" else _FAILED,
        "startTime": record.get("started"),
        "endTime": record.get("ended"),
        "error": record["reason"] if record["status"] != "ok" else None,
    }
    variables = []
    for name, value in sorted(_variables(record).items()):
        identifier = f"#variable-{_digest(name, value)}"
        graph[identifier] = {"@type": "PropertyValue", "name": name, "value": value}
        variables.append({"@id": identifier})
    said["environment"] = _compact(variables)
    if image := record.get("image"):
        key = _digest(image["name"], image["recipe"], image["sha256"] or "")
        said["containerImage"] = {"@id": f"#image-{key}"}
        graph[f"#image-{key}"] = {
            "@type": "ContainerImage",
            "additionalType": {"@id": _TERMS["SIFImage"]},
            "name": image["name"],
            "registry": "none: made from the definitions in code/",
        } | ({"sha256": image["sha256"]} if image["sha256"] else {})
    identifier = f"#launch/{quote(folder.removeprefix('records/'))}"
    graph[identifier] = {key: value for key, value in said.items() if value}
    return {"@id": identifier}


def _add_software(graph: Graph, record: Record, home: Reference) -> Reference:
    """What measured, with the versions that it found; the same one only once."""
    code, software = record.get("code") or {}, record.get("software") or {}
    version = str(code.get("version") or "unknown")
    commit = str(code.get("commit") or "")
    needs = {
        name: value
        for name, value in sorted(software.items())
        if isinstance(value, str)
    }
    key = _digest(str(code.get("rank")), version, commit, *needs, *needs.values())
    listed = ", ".join(f"{name} {value}" for name, value in needs.items())
    using = f" with {listed}" if listed else ""
    # Readers of crates prefer an address, if rankbench has one.
    place = "" if home["@id"] == _CITATION else home["@id"]
    graph[f"{place}#software-{key}"] = {
        "@type": "SoftwareApplication",
        "name": "rankbench",
        "description": f"rankbench, commit {commit[:12] or 'unknown'}{using}",
        "softwareVersion": version,
        "url": home,
    }
    return {"@id": f"{place}#software-{key}"}


def _variables(record: Record) -> dict[str, Any]:
    """Variables that the launcher got."""
    return (record.get("launcher") or {}).get("env") or {}


def _compact(values: list[Any]) -> Any:
    """A list of one value as the value: RO-Crate recommends it."""
    return values[0] if len(values) == 1 else values


def _digest(*words: str) -> str:
    text = "\0".join(words)
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]
