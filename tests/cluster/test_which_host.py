"""Hosts by themselves, and jobs that Slurm ends or forgets."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import faulty_strategies
import pytest
import slurm_conf
from allocations import Site
from logins import queue, start, table_of
from pretend_down import down
from pretend_host import wait_until
from pretend_up import up
from site_files import SITE_FILE
from test_wild import QUOTAS, quota

pytestmark = pytest.mark.cluster

EACH = """
name: each
strategy: single
model: lenet
topology: 1x1
hosts: each
launches: 4
steps: 60
repeat_disturbed: false
time_limit: 120
"""
ONE = """
name: {name}
strategy: {strategy}
model: lenet
topology: 2x1
launches: 1
steps: 20
gate: false
time_limit: 300
"""


@pytest.mark.long
@pytest.mark.skipif(not (QUOTAS / "cpu.stat").exists(), reason="cgroup v1")
def test_a_host_that_a_quota_slows_is_named(site, profile):
    site.project.experiment(EACH, "each.yaml")
    # Hosts of this cluster share cores: one after the other.
    config = profile / "config.yaml"
    config.write_text(config.read_text().replace("jobs: 50", "jobs: 1"))
    # So slow that it is found beside other programs, too.
    with quota(site.cluster.hosts["node3"], 0.15):
        said, _ = start(site, "rankbench.cli", "run", "each.yaml").communicate()
    rows = table_of(site, "each")
    assert len(rows) == 4, said
    slow = [name for name, row in rows.items() if "slow-host" in row["marks"]]
    assert [name.rpartition("=")[2] for name in slow] == ["node3"], said
    assert "node3 is " in said
    for row in rows.values():
        assert row["hosts"] in row["cell"]
    asked = ("rankbench.cli", "compare", "results/each", "--by", "host")
    told, _ = start(site, *asked).communicate()
    assert "surely below 0.95 of the others: node3" in told


@pytest.fixture(scope="module")
def forgetful(shared: Path, site: Site) -> Iterator[Site]:
    """A cluster that forgets ended jobs after 10 s, and preempts without grace."""
    more = "PreemptType=preempt/partition_prio\nPreemptMode=CANCEL\n"
    plain = slurm_conf.TEMPLATE
    slurm_conf.TEMPLATE = f"{plain.replace('Age=3600', 'Age=10')}{more}"
    try:
        state, see = shared / "forgetful", [shared, Path(sys.prefix)]
        cluster = up(state, hosts=2, user=site.cluster.user, shared=see)
    finally:
        slurm_conf.TEMPLATE = plain
    urgent = ("PartitionName=urgent", "Nodes=ALL", "PriorityTier=9")
    cluster.administer("scontrol", "create", *urgent)
    yield dataclasses.replace(site, cluster=cluster)
    down(cluster.state)


def run_until_it_trains(site: Site, name: str, source: str) -> tuple[object, str]:
    site.project.add_strategy(name, source)
    (site.project.root / "slurm_profile/site.yaml").write_text(SITE_FILE)
    site.project.experiment(ONE.format(name=name, strategy=name), f"{name}.yaml")
    run = start(site, "rankbench.cli", "run", f"{name}.yaml", "--no-plots")
    cell = f"{name}.gloo.2x1.lenet.digits"
    wait_until(lambda: site.trains(name, cell), 240, "training")
    return run, cell


def test_a_preempted_job_is_repeated(forgetful):
    endless = faulty_strategies.SLOW.replace("0.25", "1")
    run, cell = run_until_it_trains(forgetful, "endless", endless)
    urgent = ("--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null")
    forgetful.cluster.run("sbatch", *urgent, "--wrap=sleep 5")
    said, _ = run.communicate(timeout=300)
    assert run.returncode == 1, said
    row = table_of(forgetful, "endless")[cell]
    assert row["status"] == "cancelled", row
    assert row["reason"].startswith("its Slurm job was preempted; rank 0 in training")
    assert "; Slurm says PREEMPTED on node1" in row["reason"]
    assert "the site's fault: repeated by the next run" in row["reason"]


def test_a_job_that_slurm_has_forgotten_has_ended(forgetful):
    """While the run was stopped, as by Ctrl-Z, its job ended."""
    run, cell = run_until_it_trains(forgetful, "slow", faulty_strategies.SLOW)
    os.killpg(run.pid, signal.SIGSTOP)
    wait_until(lambda: not queue(forgetful, "--states=all"), 240, "it is forgotten")
    os.killpg(run.pid, signal.SIGCONT)
    said, _ = run.communicate(timeout=240)
    assert run.returncode == 0, said
    assert table_of(forgetful, "slow")[cell]["status"] == "ok"
