"""Cells that share a Slurm job: rounds, interruptions, lost hosts, reruns."""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections import Counter
from typing import Any

import pytest
from allocations import Site
from logins import Snakemake, queue
from pretend_host import wait_until

pytestmark = pytest.mark.cluster

SIX = """
name: six
strategy: single
model: lenet
launcher: srun
learning_rate: [{rates}]
launches: 1
steps: 2
warmup: 0
evaluate: false
gate: false
time_limit: 120
allocation: experiment
"""

PAIR = """
strategy: ddp
model: lenet
topology: [1x1, 2x1]
launches: 2
steps: 3
gate: false
network_check: false
time_limit: 120
"""
ONE, TWO = "ddp.gloo.1x1.lenet.digits", "ddp.gloo.2x1.lenet.digits"
KILLS = 2  # More were tried by hand.


def start_job(site: Site, name: str) -> subprocess.Popen[str]:
    """The job of the cells that share one, in an allocation of two hosts."""
    return site.start(name, "experiment")


def test_a_job_of_six_cells_is_killed_and_resumed(site):
    """Each time at most the running launch is lost, and none is measured twice."""
    rates = ", ".join(f"{0.001 * number:.3f}" for number in range(1, 7))
    cells = site.plan(SIX.format(rates=rates), "six")
    assert len(cells) == 6
    chance = random.Random(18)
    for _ in range(KILLS):
        begun = claims(site, "six")
        job = start_job(site, "six")
        wait_until(lambda n=begun: claims(site, "six") > n, "a launch has begun")
        # Some seconds later a launch may run, or be between two.
        time.sleep(chance.uniform(0.0, 6.0))
        kill(site)
        job.communicate(timeout=600)
        wait_until(lambda: not queue(site), "the job has ended")
    job = start_job(site, "six")
    said, _ = job.communicate(timeout=600)
    assert job.returncode == 0, said
    statuses = Counter()
    for cell, records in site.records("six").items():
        found = [record["status"] for record in records]
        assert found.count("ok") == 1, cell
        statuses.update(found)
    assert statuses["ok"] == 6
    # Each time a launch at most was lost.
    assert statuses.total() - 6 <= KILLS
    assert statuses.keys() <= {"ok", "cancelled"}
    site.wait_until_gone()


def claims(site: Site, name: str) -> int:
    pattern = f"results/{name}/records/*/1/[1-9]*/claim.json"
    return len(list(site.project.root.glob(pattern)))


def kill(site: Site) -> None:
    """End the job at once, as a lost host or a scheduler may do."""
    for line in queue(site):
        site.cluster.run("scancel", "--signal=KILL", "--full", line.split()[0])
        site.cluster.run("scancel", line.split()[0])


@pytest.fixture(scope="module")
def tables(site: Site, snakemake: Snakemake) -> dict[str, dict[str, Any]]:
    """The same experiment in each allocation: its table, its records."""
    found = {}
    for allocation in ("topology", "experiment"):
        text = f"name: {allocation}{PAIR}allocation: {allocation}\n"
        site.project.experiment(text, f"{allocation}.yaml")
        said = snakemake("--config", f"experiment={allocation}.yaml")
        found[allocation] = {
            "said": said,
            "table": site.table(allocation),
            "records": site.records(allocation),
        }
    return found


def test_both_allocations_give_the_same_rows(tables):
    kept = ("cell", "status", "launches_ok", "launches", "attempt", "devices")
    rows = {
        name: [[row[key] for key in kept] for row in one["table"].values()]
        for name, one in tables.items()
    }
    assert rows["topology"] == rows["experiment"]
    assert {row["status"] for row in tables["topology"]["table"].values()} == {"ok"}
    jobs = {
        name: {r["job_id"] for records in one["records"].values() for r in records}
        for name, one in tables.items()
    }
    assert {name: len(ids) for name, ids in jobs.items()} == {
        "topology": 2,
        "experiment": 1,
    }


def test_cells_of_one_job_take_turns_on_all_of_its_hosts(tables):
    records = tables["experiment"]["records"]
    rounds = [[r["round"]["number"] for r in records[cell]] for cell in (ONE, TWO)]
    assert rounds == [[1, 2], [1, 2]]
    # The cell of one host was on each of them.
    hosts = [record["launcher"]["hosts"] for record in records[ONE]]
    assert sorted(hosts) == [["node1"], ["node2"]]
    assert {record["round"]["devices"] for record in records[ONE]} == {2}
    said = tables["experiment"]["said"]
    assert "1 job; the longest may take" in said
    assert "on 2 hosts: experiment" in said
    assert "idle hosts included, by allocation: cell " in said


def test_a_cell_of_a_shared_job_is_measured_again_alone(site, tables, snakemake):
    del tables
    before = site.records("experiment")
    snakemake("--config", "experiment=experiment.yaml", f"rerun={ONE}")
    assert site.records("experiment") == before
    attempts = {c: row["attempt"] for c, row in site.table("experiment").items()}
    assert attempts == {ONE: "2", TWO: "1"}
    place = site.project.root / f"results/experiment/records/{ONE}/2/1/record.json"
    record = json.loads(place.read_text())
    assert "round" not in record


def test_a_shared_job_is_split_so_that_none_is_too_long(site, profile, snakemake):
    facts = profile / "site.yaml"
    before = facts.read_text()
    try:
        facts.write_text(f"{before}max_job_minutes: 9\n")
        text = f"name: split{PAIR}allocation: experiment\n"
        site.project.experiment(text, "split.yaml")
        said = snakemake("--config", "experiment=split.yaml")
    finally:
        facts.write_text(before)
    assert "2 jobs; the longest may take 7 minutes on 2 hosts: experiment.1" in said
    jobs: dict[int, set[str]] = {}
    for records in site.records("split").values():
        for record in records:
            jobs.setdefault(record["round"]["number"], set()).add(record["job_id"])
    assert [len(jobs[number]) for number in (1, 2)] == [1, 1]
    assert jobs[1] != jobs[2]
    assert {row["status"] for row in site.table("split").values()} == {"ok"}
