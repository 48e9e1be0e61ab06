"""Every command that makes files, by rankbench and as a target of Snakemake."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
ONE = """\
name: one
strategy: single
topology: 1x1
launcher: manual
model: lenet
launches: 2
steps: 4
warmup: 1
"""


def documented_targets() -> set[str]:
    """What docs/experiments.md names beside the commands."""
    text = (ROOT / "docs/experiments.md").read_text()
    return set(re.findall(r"\| target `(\w+)` \|", text))


def test_the_documented_targets_are_those_that_are_tested():
    here = {"all", "table", "prepare", "publish"}
    # tests/integration/test_images.py, tests/cluster/test_workflow.py
    elsewhere = {"images", "site_check"}
    assert documented_targets() == here | elsewhere


def test_data_by_rankbench_and_by_snakemake(project):
    project.experiment(ONE, "config.yaml")
    file = project.root / "data/digits.npz"
    file.unlink()
    done = project.rankbench("run", "--prepare")
    assert done.returncode == 0, done.stdout
    command = "snakemake --profile local_profile --workflow-profile none prepare"
    assert f"$ {command}" in done.stdout
    made = file.read_bytes()
    assert not (project.root / "results/one/records").exists()

    file.unlink()
    done = project.snakemake("experiment=config.yaml", flags=("prepare",))
    assert done.returncode == 0, done.stdout
    assert file.read_bytes() == made

    done = project.rankbench("run", "--prepare", "--json")
    assert done.returncode == 0, done.stdout
    facts = json.loads(done.stdout[done.stdout.index("[\n") :])
    assert facts == [{"file": "data/digits.npz", "there": True}]


def test_targets_that_measure(project):
    """The second one finds everything measured; test_run.py publishes."""
    project.experiment(ONE)
    done = project.snakemake(flags=("table",))
    assert done.returncode == 0, done.stdout
    table = (project.root / "results/one/table.md").read_text()
    assert "single.none.1x1.lenet.digits" in table
    assert "Nothing to be done" in project.snakemake(flags=("all",)).stdout
