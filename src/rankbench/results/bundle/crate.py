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

from rocrate.model import ComputationalWorkflow, ContextEntity
from rocrate.rocrate import ROCrate

from rankbench.record import Record
from rankbench.results.bundle.contents import ABOUT, CITATION, CRATE, PAGE
from rankbench.schema import load_yaml

# Terms that the context of RO-Crate 1.1 lacks.
_WFRUN = "https://w3id.org/ro/terms/workflow-run#"
_WFRUN_TERMS = (
    *("ContainerImage", "SIFImage", "containerImage"),
    *("environment", "registry", "sha256"),
)
_TERMS = {"buildInstructions": "https://codemeta.github.io/terms/buildInstructions"}
_TERMS |= {name: f"{_WFRUN}{name}" for name in _WFRUN_TERMS}

# The recommended rules of Workflow RO-Crate ask for version 1.1 of RO-Crate.
_VERSION = "1.1"
_WORKFLOW_CRATE = "https://w3id.org/workflowhub/workflow-ro-crate/1.0"
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
    ".html": "text/html",
    ".json": "application/json",
    ".md": "text/markdown",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".tex": "application/x-tex",
    ".yaml": "application/yaml",
    ".whl": "application/zip",
}

# Described one by one; of the other files, their folders are.
_FOLDERS = ("requests/", "work/own/", "work/logs/", "work/needs/")

_EXPERIMENT, _TABLE = "work/experiment.yaml", "table.csv"

# Launches that are not timed, by the name of their folder.
_PURPOSES = {"gate": "check of the strategy", "profile": "profiled launch"}


class _Crate(ROCrate):
    """A crate, and where the software that measured is at home.

    Args:
        names: the files of the bundle.
        cited: the contents of its CITATION.cff.
    """

    def __init__(self, names: Sequence[str], cited: Mapping[str, Any]) -> None:
        super().__init__(version=_VERSION)
        self.names, self.cited = names, cited
        self.home = {"@id": cited.get("repository-code") or CITATION}

    def say(self, identifier: str, kind: Any, **properties: Any) -> dict[str, str]:
        """Add an entity that is no file, unless it is there; returns a reference."""
        if identifier not in self:
            known = {k: v for k, v in properties.items() if v is not None and v != []}
            self.add(ContextEntity(self, identifier, {"@type": kind, **known}))
        return {"@id": identifier}


def write_crate(
    root: Path,
    names: Sequence[str],
    plan: Record,
    records: Mapping[str, Record],
    *,
    anonymised: bool,
) -> None:
    """Write the crate of a bundle.

    A bundle without launches describes no run, and has none.

    Args:
        root: receives the crate, and has CITATION.cff.
        names: the other files of the bundle, without SHA256SUMS and signatures.
        plan, records: of the bundle; records by the folder of the launch.
        anonymised: whether names of people are placeholders.
    """
    if not any(record.get("ended") for record in records.values()):
        return
    crate = _Crate(names, load_yaml(root / CITATION))
    crate.metadata.extra_terms = _TERMS
    crate.metadata["conformsTo"] = [
        {"@id": f"https://w3id.org/ro/crate/{_VERSION}"},
        {"@id": _WORKFLOW_CRATE},
    ]
    experiment = plan["experiment"]
    title = f"rankbench results: {experiment['name']}"
    # The time of writing would give other bytes.
    ended = max(r["ended"] for r in records.values() if r.get("ended"))
    crate.root_dataset["datePublished"] = ended
    crate.name, crate.description = title, str(experiment.get("description") or title)
    crate.root_dataset["conformsTo"] = [
        crate.say(identifier, "CreativeWork", name=name, version=version)
        for identifier, (name, version) in _PROFILES.items()
    ]
    credit = _add_authors(crate)
    for key, value in credit.items():
        crate.root_dataset[key] = value
    workflow = _add_workflow(crate, credit)
    for name in names:
        _add_file(crate, name)
    crate.get(PAGE)["about"] = {"@id": "./"}
    for way, name in (("input", _EXPERIMENT), ("output", _TABLE)):
        parameter = crate.say(
            f"#{way}",
            "FormalParameter",
            name=PurePosixPath(name).stem,
            additionalType="File",
            workExample={"@id": name},
        )
        crate.get(name)["exampleOfWork"] = crate.get(workflow)[way] = parameter
    environments = [record["launcher"].get("env", {}) for record in records.values()]
    homes = {PurePosixPath(str(env.get("HOME", ""))).name for env in environments}
    accounts = "" if anonymised else ", ".join(sorted(homes - {""}))
    whose = accounts or "a person whom the bundle does not name"
    crate.say("#operator", "Person", name=whose)
    _add_run(crate, workflow, records)
    launches = [_add_launch(crate, *launch) for launch in records.items()]
    crate.root_dataset["mentions"] = [{"@id": "#run"}, *launches]
    text = json.dumps(crate.metadata.generate(), indent=1, ensure_ascii=False) + "\n"
    (root / CRATE).write_bytes(text.encode(errors="replace"))


def _add_authors(crate: _Crate) -> dict[str, Any]:
    """Add authors and licence; returns the properties that refer to them."""
    authors, publishers = [], []
    for number, author in enumerate(crate.cited["authors"], start=1):
        is_person = "name" not in author
        name = author.get("name") or "{given-names} {family-names}".format(**author)
        kind, home = ("Person", None) if is_person else ("Organization", crate.home)
        authors.append(crate.say(f"#author-{number}", kind, name=name, url=home))
        publishers += [] if is_person else authors[-1:]
    licence = crate.cited["license"]
    url = f"{_LICENCES}{licence}"
    said = {
        "license": crate.say(url, "CreativeWork", name=licence, url=url),
        "author": _compact(authors),
        "publisher": _compact(publishers),
    }
    return {key: value for key, value in said.items() if value}


def _add_workflow(crate: _Crate, credit: Mapping[str, Any]) -> str:
    """The Snakefile that ran, or the experiment if the bundle has none."""
    found = [n for n in crate.names if PurePosixPath(n).name == "Snakefile"]
    name = found[-1] if found else _EXPERIMENT
    language: dict[str, Any] = {"name": "rankbench experiment"}
    if found:
        language = {"name": "Snakemake", "url": {"@id": _SNAKEMAKE}}
    # Hosts, software and images of the run, and how the images are made.
    definitions = [n for n in crate.names if n.endswith(".def")]
    properties = {
        "@type": ["File", "SoftwareSourceCode", "ComputationalWorkflow", "HowTo"],
        "name": "rankbench: measures each cell of an experiment",
        "version": str(crate.cited["version"]),
        **{key: value for key, value in credit.items() if key != "publisher"},
        "url": crate.home,
        "encodingFormat": "text/plain",
        "conformsTo": {"@id": _BIOSCHEMAS},
        "programmingLanguage": crate.say("#language", "ComputerLanguage", **language),
        "buildInstructions": _compact([{"@id": n} for n in (ABOUT, *definitions)]),
    }
    crate.mainEntity = crate.add(
        ComputationalWorkflow(crate, dest_path=name, properties=properties)
    )
    return quote(name)


def _add_file(crate: _Crate, name: str) -> None:
    """A file, or the folder of many that are alike; launches are added elsewhere."""
    folder = next(filter(name.startswith, _FOLDERS), None)
    if folder:
        if folder not in crate:
            crate.add_dataset(dest_path=folder, properties={"name": folder[:-1]})
    elif not name.startswith("records/") and quote(name) not in crate:
        form = _FORMATS.get(PurePosixPath(name).suffix, "text/plain")
        properties = {"name": name, "encodingFormat": form}
        if name == CITATION:
            properties["description"] = "how to cite rankbench"
        crate.add_file(dest_path=name, properties=properties)


def _add_run(crate: _Crate, workflow: str, records: Mapping[str, Record]) -> None:
    """The run of the whole experiment."""
    results = ("answer.", "table.", "sections/")
    tables = [name for name in crate.names if name.startswith(results)]
    inputs = [_EXPERIMENT, *(["work/own/"] if "work/own/" in crate else [])]
    good = any(record["status"] == "ok" for record in records.values())
    starts, ends = (
        [r[key] for r in records.values() if r.get(key)] for key in ("started", "ended")
    )
    crate.say(
        "#run",
        "CreateAction",
        name="run of the experiment",
        description=f"{len(records)} launches, described one by one",
        instrument={"@id": workflow},
        object=_compact([{"@id": name} for name in inputs]),
        result=_compact([{"@id": name} for name in ("plan.json", *tables)]),
        agent={"@id": "#operator"},
        actionStatus=_COMPLETED if good else _FAILED,
        **({"startTime": min(starts), "endTime": max(ends)} if starts and ends else {}),
    )


def _add_launch(crate: _Crate, folder: str, record: Record) -> dict[str, str]:
    """Add an action for a launch, with its folder, software, image and environment.

    Args:
        crate: receives them.
        folder: `records/CELL/ATTEMPT/[PURPOSE/]LAUNCH`.
        record: of the launch.
    """
    _, cell, attempt, *purpose, number = folder.split("/")
    kind = _PURPOSES[purpose[0]] if purpose else "launch"
    what = f"{kind} {number} of {cell}, attempt {attempt}"
    steps = ", logs, and the duration of each step by rank"
    described = f"record{steps if 'ranks' in record else ' and logs'}"
    properties = {"name": f"records of {what}", "description": described}
    crate.add_dataset(dest_path=f"{folder}/", properties=properties)
    variables = [
        crate.say(
            f"#variable-{_digest(*one)}", "PropertyValue", name=one[0], value=one[1]
        )
        for one in sorted(record["launcher"].get("env", {}).items())
    ]
    container = None
    if image := record["image"]:
        key = _digest(image["name"], image["recipe"], image["sha256"] or "")
        container = crate.say(
            f"#image-{key}",
            "ContainerImage",
            additionalType={"@id": _TERMS["SIFImage"]},
            name=image["name"],
            registry="none: made from the definitions in code/",
            sha256=image["sha256"],
        )
    is_ok = record["status"] == "ok"
    return crate.say(
        f"#launch/{quote(folder.removeprefix('records/'))}",
        "CreateAction",
        name=what,
        description=f"launch {number} of {cell}: {record['status']}",
        instrument=_add_software(crate, record),
        object={"@id": "plan.json"},
        result={"@id": f"{quote(folder)}/"},
        agent={"@id": "#operator"},
        actionStatus=_COMPLETED if is_ok else _FAILED,
        startTime=record.get("started"),
        endTime=record.get("ended"),
        error=None if is_ok else record["reason"],
        environment=_compact(variables),
        containerImage=container,
    )


def _add_software(crate: _Crate, record: Record) -> dict[str, str]:
    """What measured, with the versions that it found; the same one only once."""
    code, software = record["code"], record.get("software") or {}
    version, commit = str(code.get("version") or "unknown"), code.get("commit") or ""
    needs = {k: v for k, v in sorted(software.items()) if isinstance(v, str)}
    key = _digest(str(code.get("rank")), version, commit, *needs, *needs.values())
    listed = ", ".join(f"{name} {value}" for name, value in needs.items())
    using = f" with {listed}" if listed else ""
    # Readers of crates prefer an address, if rankbench has one.
    place = "" if crate.home["@id"] == CITATION else crate.home["@id"]
    return crate.say(
        f"{place}#software-{key}",
        "SoftwareApplication",
        name="rankbench",
        description=f"rankbench, commit {commit[:12] or 'unknown'}{using}",
        softwareVersion=version,
        url=crate.home,
    )


def _compact(values: list[Any]) -> Any:
    """A list of one value as the value: RO-Crate recommends it."""
    return values[0] if len(values) == 1 else values


def _digest(*words: object) -> str:
    text = "\0".join(map(str, words))
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]
