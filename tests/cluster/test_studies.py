"""Rows of studies that want more than two hosts, or hosts one by one."""

from __future__ import annotations

from pathlib import Path

import pytest
from logins import queue
from site_files import SITE_FILE

pytestmark = pytest.mark.cluster

FOUR_HOSTS = SITE_FILE.replace("nodes: 2", "nodes: 4")
# Cells as in the studies, with a smaller model: DDP over four hosts, and demo 3 of
# study 002, whose processes drive two devices each, started by hand and by its job
# script.
ROWS = """
name: rows
model: lenet
oversubscribe: true
launches: 1
steps: 3
gate: false
network_check: false
time_limit: 300
blocks:
  - {strategy: ddp, topology: 4x1}
  - {strategy: ddp_dp, topology: 3x2, launcher: manual, init_method: file}
  - {strategy: ddp_dp, topology: 2x2, launcher: job_array, init_method: file}
"""
# A job array of two tasks, while all hosts but one are busy.
LATE = """
name: late
strategy: ddp
model: lenet
topology: 2x1
launcher: job_array
init_method: file
launches: 1
steps: 3
gate: false
network_check: false
time_limit: 60
start_within: 15
"""


@pytest.fixture(autouse=True)
def four_hosts(profile: Path) -> None:
    (profile / "site.yaml").write_text(FOUR_HOSTS)


def test_rows_over_more_hosts_and_as_a_job_array(site, snakemake):
    site.project.experiment(ROWS, "rows.yaml")
    snakemake("--config", "experiment=rows.yaml")
    table = site.table("rows")
    topologies = [row["topology"] for row in table.values()]
    assert topologies == ["4x1", "3x2", "2x2"]
    reasons = {row["reason"] for row in table.values() if row["status"] != "ok"}
    assert not reasons
    for cell, (record,) in site.records("rows").items():
        hosts = [rank["host"] for rank in record["ranks"]]
        assert len(set(hosts)) == len(hosts) == int(table[cell]["topology"][0])
        assert record["job_id"]


def test_a_job_array_that_does_not_start_in_time_says_which_tasks(site, snakemake):
    site.project.experiment(LATE, "late.yaml")
    hold = ("sbatch", "--parsable", "--nodes=3", "--exclusive", "--output=/dev/null")
    taken = site.cluster.run(*hold, "--wrap=sleep 600").strip()
    try:
        snakemake("--config", "experiment=late.yaml", status=1)
    finally:
        site.cluster.run("scancel", taken)
    (row,) = site.table("late").values()
    assert row["status"] == "cancelled"
    said, _, stood = row["reason"].partition("; ")
    assert said == "job array not started within 15 s: of 2 tasks 1 (Resources)"
    # The rank of the task that did start waits for the other, or imports torch still.
    assert stood.startswith("rank 0 at ")
    assert not [job for job in queue(site) if "_late_" in job]
    site.wait_until_gone()
