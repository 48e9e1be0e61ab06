"""Every command that a document shows can be typed: its options and targets exist."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path

import pytest

from factories import read_experiment
from rankbench.cli import build_parser, read_arguments
from rankbench.commands import COMMANDS
from rankbench.schema import load_schema

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
BLOCK = re.compile(r"^```(?:sh|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TARGETS = {"all", "table", "prepare", "images", "site_check", "publish"}


def find_commands(program: str) -> list[tuple[str, list[str]]]:
    """Document and words of each command of a program, in blocks of commands."""
    found = []
    for document in DOCUMENTS:
        for block in BLOCK.finditer(document.read_text()):
            for line in block[1].replace("\\\n", " ").splitlines():
                if program not in line:
                    continue
                words = shlex.split(line.removeprefix("$ "), comments=True)
                if words[:1] == [program]:
                    found.append((document.name, words[1:]))
    return found


@pytest.mark.parametrize(("document", "words"), find_commands("rankbench"))
def test_commands_of_rankbench(document, words):
    # Words in capitals are placeholders that the reader replaces.
    words = words[: words.index("|")] if "|" in words else words
    read_arguments(words)


# As code prints them; a field stands for a value.
PRINTED = re.compile(r"`rankbench ([a-z][^`]*)`")
SOURCES = [
    *(ROOT / "src").rglob("*.py"),
    *(ROOT / "src/rankbench/assets").rglob("*.yaml"),
    *ROOT.glob("*_profile/*.yaml"),
]


def find_printed() -> list[tuple[str, str]]:
    return [
        (path.name, re.sub(r"\{.*?\}", "", found[1]))
        for path in SOURCES
        for found in PRINTED.finditer(re.sub(r'"\n\s*f?"', "", path.read_text()))
    ]


@pytest.mark.parametrize(("source", "text"), find_printed())
def test_commands_in_code_exist(source, text):
    name, *words = text.split()
    known = build_parser(name).commands[name].format_help()
    assert all(word in known for word in words if word.startswith("-"))


@pytest.mark.parametrize(("document", "words"), find_commands("make"))
def test_targets_of_make(document, words):
    known = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {word for word in words if "=" not in word} <= set(known)


@pytest.mark.parametrize(("document", "words"), find_commands("snakemake"))
def test_targets_of_snakemake(document, words):
    words = list(words)
    while "--config" in words:
        place = words.index("--config")
        after = [w for w in words[place + 1 :] if "=" not in w]
        keys = {w.partition("=")[0] for w in words[place + 1 :] if "=" in w}
        assert keys <= {"experiment", "override", "only", "rerun", "plots"}
        words = words[:place] + after
    if "--profile" in words:
        place = words.index("--profile")
        assert (ROOT / words[place + 1] / "config.yaml").exists()
        words = words[:place] + words[place + 2 :]
    assert {word for word in words if not word.startswith("-")} <= TARGETS


EXPERIMENT = re.compile(r"^```yaml\n(name: .*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", ["experiments", "comparing", "slurm", "gallery"])
def test_experiments_of_documents_are_valid(name, tmp_path):
    blocks = EXPERIMENT.findall((ROOT / f"docs/{name}.md").read_text())
    assert blocks
    for block in blocks:
        # Each value of the sweep that the text is about makes a cell.
        assert len(read_experiment(tmp_path, block).cells) > 1


def test_keys_of_an_experiment_are_all_documented():
    text = (ROOT / "docs/experiments.md").read_text()
    table = text[text.index("| key | default") : text.index("## Several sweeps")]
    undocumented = [
        key
        for key in load_schema("experiment")["properties"]
        if f"`{key}`" not in table
    ]
    assert not undocumented


def test_the_reference_of_the_site_has_every_command_and_key():
    page = runpy.run_path(str(ROOT / "docs/reference.py"))["make_page"]()
    for command in COMMANDS:
        assert f"### rankbench {command}\n" in page
    for name in ("experiment", "site"):
        for key in load_schema(name)["properties"]:
            assert f"\n| `{key}` | " in page
    assert "| `heartbeat_grace` | `15` | seconds without" in page
