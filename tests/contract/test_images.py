"""What the images promise, and the files that they are built from, agree."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from rankbench.launch.images.build import SPACE
from rankbench.schema import load_yaml

ROOT = Path(__file__).resolve().parents[2]
CONTAINERS = ROOT / "containers"
IMAGES = load_yaml(CONTAINERS / "images.yaml")
SOURCES = (CONTAINERS / "requirements/sources.txt").read_text()

pytestmark = pytest.mark.contract


@pytest.mark.parametrize("name", IMAGES)
def test_a_definition_is_what_its_entry_says(name):
    image = IMAGES[name]
    definition = (CONTAINERS / image["definition"]).read_text()
    assert f"OSVersion: {image['suite']}\n" in definition
    assert f"promise {name} {{{{ flavour }}}}" in definition
    built = re.search(r"^    build (\S+)$", definition, re.MULTILINE)
    assert built is not None
    assert set(image["horovod"]) <= set(built[1].split(","))


@pytest.mark.parametrize("name", IMAGES)
def test_what_a_build_reads_is_listed(name):
    image = IMAGES[name]
    definition = (CONTAINERS / image["definition"]).read_text()
    section = definition.partition("\n%files\n")[2].partition("\n%")[0]
    brought = set(re.findall(r"^ +containers/(\S+)", section, re.MULTILINE))
    # Of these two, an image uses only its own part.
    assert brought - {"requirements", "images.yaml"} == set(image["inputs"])
    assert set(image["requirements"]) == set(image["flavours"])


def test_every_requirement_is_pinned_with_hashes():
    used = {
        file
        for image in IMAGES.values()
        for files in image["requirements"].values()
        for file in files
    }
    for file in sorted(used | {"sources.txt"}):
        text = (CONTAINERS / "requirements" / file).read_text()
        requirements = re.findall(r"^\S+==\S+.*(?:\n +--hash.*)*", text, re.MULTILINE)
        assert requirements, file
        for requirement in requirements:
            assert "--hash=sha256:" in requirement, (file, requirement)


def test_sources_are_those_that_are_built_and_locked_elsewhere():
    script = (CONTAINERS / "build_horovod.sh").read_text()
    for name in ("RELEASE", "SOURCE_SHA256"):
        value = re.search(rf"^{name}=(\w\S+)$", script, re.MULTILINE)
        assert value is not None
        assert value[1] in SOURCES
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    deepspeed = next(
        requirement
        for requirement in project["optional-dependencies"]["extras"]
        if requirement.startswith("deepspeed")
    )
    assert f"{deepspeed} " in SOURCES


@pytest.mark.parametrize(
    ("flavour", "torch", "torchao"),
    [("cuda", "2.13.0", "0.18.0"), ("cuda12", "2.10.0", "0.16.0")],
)
def test_torchao_is_one_that_is_made_for_this_torch(flavour, torch, torchao):
    """Another one warns at each import, and goes without its own kernels."""
    locked = (CONTAINERS / f"requirements/{flavour}.txt").read_text()
    found = dict(re.findall(r"^(torch|torchao)={2,3}(\S+)", locked, re.MULTILINE))
    assert found == {"torch": torch, "torchao": torchao}


def test_only_cells_and_looks_at_hosts_are_jobs_of_a_cluster():
    text = "\n".join(path.read_text() for path in (ROOT / "workflow/rules").iterdir())
    rules = re.findall(r"^rule (\w+)(.*?)(?=^\S|\Z)", text, re.M | re.S)
    acting = [(name, rule) for name, rule in rules if "shell:" in rule]
    submitted = {name for name, rule in acting if "localrule: True" not in rule}
    assert submitted == {"job", "hosts"}


def test_the_manual_names_the_space_that_a_build_asks_for():
    cpu, cuda = (building for building, _ in SPACE.values())
    said = (ROOT / "docs/images.md").read_text()
    assert f"CPU {cpu:g} GiB, CUDA {cuda:g} GiB" in said
