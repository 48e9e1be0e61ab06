"""Pipelines over two real ranks: their records, and the table of their bubbles."""

from __future__ import annotations

import csv
import json

import pytest

pytestmark = pytest.mark.integration

PIPELINES = """
name: pipelines
strategy:
  - single
  - pipeline: {schedule: [gpipe, interleaved], microbatches: 8}
  - rpc_pmp
topology: 1x2
oversubscribe: true
model: lenet
# Each stage must compute in it, on whichever rank it is.
precision: bf16
batch_size: 32
launches: 1
launcher: manual
gate: false
epochs: 1
warmup: 1
time_limit: 100
"""


def test_pipelines_train_as_one_process_does_and_tell_of_their_stages(project):
    with open(project.root / "local_profile/site.yaml", "a") as site:
        site.write("exclusive: true\n")
    project.experiment(PIPELINES)
    done = project.snakemake(timeout=500)
    assert done.returncode == 0, done.stdout
    results = project.root / "results/pipelines"
    with open(results / "table.csv") as file:
        table = {row["cell"]: row for row in csv.DictReader(file)}
    assert {row["status"] for row in table.values()} == {"ok"}, table
    records = {
        cell: json.loads((results / f"records/{cell}/1/1/record.json").read_text())
        for cell in table
    }
    (base,) = (r for c, r in records.items() if c.startswith("single"))
    for cell, record in records.items():
        assert record["samples"] == base["samples"] == 44 * 32, cell
        assert record["loss"]["last"] == pytest.approx(base["loss"]["last"], rel=0.05)
        accuracy = record["accuracy"]["overall"]
        assert accuracy == pytest.approx(base["accuracy"]["overall"], abs=0.1), cell
        if cell.startswith("pipeline"):
            told = [rank["details"] for rank in record["ranks"]]
            assert [len(one["stages"]) for one in told] == [1 + ("inter" in cell)] * 2
            assert all(0 < one["bubble"] < 1 for one in told)
    with open(results / "sections/pipeline.csv") as file:
        bubbles = {row["cell"]: row for row in csv.DictReader(file)}
    assert bubbles.keys() == {cell for cell in table if cell.startswith("pipeline")}
    for row in bubbles.values():
        assert (row["microbatches"], row["ranks"]) == ("8", "2")
    assert "Pipelines" in (results / "report.html").read_text()
