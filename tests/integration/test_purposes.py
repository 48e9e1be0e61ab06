"""Launches that are not measured: the gate before, the profile beside."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

EXPERIMENT = """
name: small
strategy: [single, ddp, summed]
topology: 1x2
launcher: manual
model: lenet
data: synthetic
batch_size: 16
launches: 1
steps: 4
warmup: 1
time_limit: 60
"""

SUMMED = '''
"""DDP that forgets to divide."""

from rankbench.rank.strategies.ddp import Ddp


class Summed(Ddp):
    """Gradients are summed, not averaged."""

    like = "ddp"
    needs = {"backends": ["gloo"]}

    def update(self):
        for parameter in self.model.parameters():
            parameter.grad *= self.world.size
        super().update()
'''


def read_rows(root: Path) -> dict[str, dict[str, str]]:
    with open(root / "results/small/table.csv") as file:
        return {row["strategy"]: row for row in csv.DictReader(file)}


def read_records(root: Path, strategy: str, pattern: str) -> list[dict]:
    folder = root / "results/small/records"
    found = sorted(folder.glob(f"{strategy}.*/1/{pattern}/record.json"))
    return [json.loads(path.read_text()) for path in found]


def test_what_trains_something_else_gets_no_speed_and_the_rest_a_profile(project):
    project.add_strategy("summed", SUMMED)
    project.measure(EXPERIMENT)

    rows = read_rows(project.root)
    assert {name: row["status"] for name, row in rows.items()} == {
        "single": "ok",
        "ddp": "ok",
        "summed": "mismatch",
    }
    assert "does not train what a single process trains" in rows["summed"]["reason"]
    assert rows["summed"]["throughput"] == ""
    assert "unchecked" not in rows["ddp"]["marks"].split()
    assert not read_records(project.root, "summed", "[1-9]")
    (ddp,) = read_records(project.root, "ddp", "[1-9]")
    assert ddp["gate"]["status"] == "ok"
    assert ddp["gate"]["weights_error"] < 1e-6
    assert ddp["model"]["flops_per_sample"] > 0
    assert not read_records(project.root, "single", "gate/*")
    shown = project.rankbench("status", "experiment.yaml")
    assert "mismatch" in shown.stdout

    # A profile that is requested later is added without measuring again.
    project.measure(EXPERIMENT + "profile: true\n", plots=True)
    assert read_records(project.root, "ddp", "[1-9]") == [ddp]
    (profiled,) = read_records(project.root, "ddp", "profile/*")
    assert profiled["status"] == "ok"
    assert [rank["rank"] for rank in profiled["profile"]] == [0, 1]
    folder = next(project.root.glob("results/small/records/ddp.*/1/profile/1"))
    for rank in profiled["profile"]:
        phases = [s["name"] for s in rank["spans"] if s["kind"] == "phase"]
        assert phases == 3 * ddp["phases"]
        assert any(s["kind"] == "communication" for s in rank["spans"])
        assert any("convolution" in o["name"] for o in rank["operators"])
        with gzip.open(folder / f"trace{rank['rank']}.json.gz") as file:
            assert json.load(file)["traceEvents"]
    results = project.root / "results/small"
    with open(results / "sections/profiles.csv") as file:
        told = {(row["cell"], row["rank"]) for row in csv.DictReader(file)}
    assert sorted(cell.split(".")[0] for cell, _ in told) == ["ddp", "ddp", "single"]
    assert len(list(results.glob("plots/profile-*.svg"))) == 2
    again = project.rankbench("run", "-n", "experiment.yaml").stdout
    assert "0 to measure" in again
    assert "gates or profiles" not in again


def test_replicas_differ_in_their_batch_statistics_only(project):
    project.measure(
        "name: small\nstrategy: ddp\ntopology: 1x2\nlauncher: manual\nmodel: resnet18\n"
        "data: synthetic\nimage_size: 32\nbatch_size: 4\nlaunches: 1\nsteps: 2\n"
        "warmup: 0\ngate: false\nsave_model: per_rank\n"
    )
    folder = next(project.root.glob("results/small/records/*/1/1"))
    shown = project.rankbench("compare", str(folder), "--models")
    assert shown.returncode == 1
    differing = [
        line.split(":")[0].strip()
        for line in shown.stdout.splitlines()
        if ": up to" in line
    ]
    # These are the mean and the variance of 20 normalisations.
    assert len(differing) == 40
    assert all("running_" in name for name in differing)
