"""The RO-Crate of a bundle: what it says, and what `verify` refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from rocrate.rocrate import ROCrate

from rankbench.record import Layout, read_json
from rankbench.results.bundle import contents
from rankbench.results.bundle.crate import write_crate
from rankbench.results.bundle.verify import verify_bundle
from rankbench.results.bundle.write import write_bundle
from rankbench.results.read.archive import list_files
from unit.synthetic import plan_cell, write_launch, write_plan

pytestmark = pytest.mark.unit

CRATE = "ro-crate-metadata.json"
SINGLE, DDP = plan_cell("single"), plan_cell("ddp", "1x2")
IMAGE = {"name": "gloo-cpu", "recipe": "a" * 64, "sha256": "b" * 64}
# JSON-LD would read this as a link, if it were not a text.
HOSTILE = '{"@id": "file:///etc/passwd"}'
LAUNCHER = {"argv": [], "hosts": ["h"]}
LAUNCHER |= {"env": {"HOME": "/users/lovelace", "X": HOSTILE}}


def write_results(root: Path) -> Layout:
    """Two cells, one of them in an image; the last launch has failed."""
    layout = write_plan(root, [SINGLE, DDP], launches=2)
    code = {"version": "0.1.0", "commit": "c" * 40, "rank": "d" * 64}
    usual = {"code": code, "launcher": LAUNCHER}
    for launch in (1, 2):
        write_launch(layout, SINGLE, launch, **usual)
    write_launch(layout, DDP, 1, image=IMAGE, **usual)
    failed = {"status": "oom", "reason": "rank 1: out of memory"}
    write_launch(layout, DDP, 2, image=IMAGE, **failed)
    return layout


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle as it is, and an anonymous one."""
    place = tmp_path_factory.mktemp("crates")
    layout = write_results(place / "results")
    write_bundle(layout, place / "bundle", anonymise=False)
    write_bundle(layout, place / "hidden", anonymise=True)
    return place


def read_graph(bundle: Path) -> dict[str, dict[str, Any]]:
    graph = json.loads((bundle / CRATE).read_text())["@graph"]
    entities = {entity["@id"]: entity for entity in graph}
    assert len(entities) == len(graph)
    return entities


def launches_of(entities: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for name, one in entities.items() if name.startswith("#launch/")]


def test_each_launch_is_an_action(made):
    entities = read_graph(made / "bundle")
    first, _, inside, failed = launches_of(entities)
    assert first["startTime"] == "2026-01-01T00:00:01+00:00"
    assert first["endTime"] == "2026-01-01T00:01:01+00:00"
    assert entities[first["agent"]["@id"]]["name"] == "lovelace"
    variables = [entities[one["@id"]] for one in first["environment"]]
    assert {one["name"]: one["value"] for one in variables} == LAUNCHER["env"]
    software = entities[first["instrument"]["@id"]]
    assert "torch" in software["description"]
    assert first["result"]["@id"] == f"records/{SINGLE['id']}/1/1/"
    assert "containerImage" not in first
    image = entities[inside["containerImage"]["@id"]]
    assert (image["name"], image["sha256"]) == ("gloo-cpu", "b" * 64)
    assert failed["actionStatus"].endswith("/FailedActionStatus")
    assert failed["error"] == "rank 1: out of memory"
    mentioned = [one["@id"] for one in entities["./"]["mentions"]]
    assert mentioned == ["#run", *(one["@id"] for one in launches_of(entities))]


def test_the_root_names_authors_licence_and_profiles(made):
    entities = read_graph(made / "bundle")
    root = entities["./"]
    assert entities[root["author"]["@id"]]["name"] == "The rankbench authors"
    assert root["license"] == {"@id": "https://spdx.org/licenses/Apache-2.0"}
    assert root["datePublished"] == "2026-01-01T00:01:02+00:00"
    profiles = [one["@id"] for one in root["conformsTo"]]
    assert "https://w3id.org/ro/wfrun/workflow/0.5" in profiles
    run = entities["#run"]
    assert run["object"] == {"@id": "work/experiment.yaml"}
    assert {"@id": "table.csv"} in run["result"]
    assert run["startTime"] < run["endTime"]


def test_the_library_reads_it_and_its_files_are_there(made):
    crate = ROCrate(made / "bundle")
    assert crate.mainEntity.id == "work/experiment.yaml"
    assert "ComputationalWorkflow" in crate.mainEntity.type
    assert crate.get("README.md")["about"].id == "./"
    assert len(crate.get_by_type("CreateAction")) == 5
    for name, entity in read_graph(made / "bundle").items():
        kinds = entity["@type"]
        if {"File", "Dataset"} & {*([kinds] if isinstance(kinds, str) else kinds)}:
            assert (made / "bundle" / unquote(name)).exists(), name


def test_an_anonymous_crate_names_no_account(made):
    assert "lovelace" not in (made / "hidden" / CRATE).read_text()
    entities = read_graph(made / "hidden")
    agent = entities[launches_of(entities)[0]["agent"]["@id"]]
    assert agent["name"] == "a person whom the bundle does not name"


def test_without_launches_there_is_no_crate(tmp_path):
    layout = write_plan(tmp_path / "results", [SINGLE], launches=1)
    write_bundle(layout, tmp_path / "bundle", anonymise=False)
    assert not (tmp_path / "bundle" / CRATE).exists()
    assert verify_bundle(tmp_path / "bundle").findings == []


def test_authors_are_people_or_organisations(made, tmp_path):
    bundle = shutil.copytree(made / "bundle", tmp_path / "bundle")
    cited = """\
authors:
  - {given-names: Ada, family-names: Byron}
  - {name: The others}
license: MIT
version: 1.0.0
repository-code: https://example.org/rankbench
"""
    (bundle / "CITATION.cff").write_text(cited)
    records = contents.read_records(Layout(bundle), [SINGLE["id"]])
    names, plan = list_files(bundle)[0], read_json(bundle / "plan.json")
    write_crate(bundle, names, plan, records, anonymised=False)
    entities = read_graph(bundle)
    one, other = (entities[a["@id"]] for a in entities["./"]["author"])
    assert (one["@type"], one["name"]) == ("Person", "Ada Byron")
    assert other["url"] == {"@id": "https://example.org/rankbench"}
    software = entities[launches_of(entities)[0]["instrument"]["@id"]]
    assert software["@id"].startswith("https://example.org/rankbench#")
