"""Hosts by themselves, and jobs that Slurm ends or forgets."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import faulty_strategies
import pytest
import slurm_conf
from allocations import Site
from logins import queue, start
from pretend_cluster import Cluster, daemon_environment
from pretend_down import down
from pretend_host import PretendError, check, wait_until
from pretend_up import is_idle, up
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
network_check: false
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
    rows = site.table("each")
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
    wait_until(lambda: site.trains(name, cell), "training")
    return run, cell


def test_a_preempted_job_is_repeated(forgetful):
    endless = faulty_strategies.SLOW.replace("0.25", "1")
    run, cell = run_until_it_trains(forgetful, "endless", endless)
    urgent = ("--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null")
    forgetful.cluster.run("sbatch", *urgent, "--wrap=sleep 5")
    said, _ = run.communicate(timeout=600)
    assert run.returncode == 1, said
    row = forgetful.table("endless")[cell]
    assert row["status"] == "cancelled", row
    assert row["reason"].startswith("its Slurm job was preempted; rank 0 in training")
    assert "; Slurm says PREEMPTED on node1" in row["reason"]
    assert "the site's fault: repeated by the next run" in row["reason"]


def test_a_job_that_slurm_has_forgotten_has_ended(forgetful):
    """While the run was stopped, as by Ctrl-Z, its job ended."""
    run, cell = run_until_it_trains(forgetful, "slow", faulty_strategies.SLOW)
    os.killpg(run.pid, signal.SIGSTOP)
    wait_until(lambda: not queue(forgetful, "--states=all"), "it is forgotten")
    os.killpg(run.pid, signal.SIGCONT)
    said, _ = run.communicate(timeout=600)
    assert run.returncode == 0, said
    assert forgetful.table("slow")[cell]["status"] == "ok"


# For the daemon of accounting, which has its database here.
DATABASE = """\
AuthType=auth/munge
AuthInfo=socket={state}/munge/socket
DbdHost=localhost
DbdPort={port}
StorageType=accounting_storage/mysql
StorageUser=root
SlurmUser=root
LogFile={state}/log/slurmdbd
PidFile={state}/controller/dbd-pid
"""
WITH_ACCOUNTING = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort={port}
AccountingStoragePass={state}/munge/socket
"""


def keep_accounts(cluster: Cluster) -> None:
    """Restart the controller of a cluster with accounting."""
    state, values = cluster.state, {"state": cluster.state, "port": 7900}
    data, socket = state / "database", state / "database.socket"
    variables = {**daemon_environment(state), "MYSQL_UNIX_PORT": str(socket)}
    plain = ("--no-defaults", f"--datadir={data}", "--user=root")
    check(["mariadb-install-db", *plain], variables)
    more = ("--skip-networking", "--skip-grant-tables", f"--socket={socket}")
    with open(state / "log/mariadbd", "wb") as log:
        subprocess.Popen(["mariadbd", *plain, *more], env=variables, stderr=log)
    wait_until(socket.exists, "a database")
    settings = state / "etc/slurm/slurmdbd.conf"
    settings.write_text(DATABASE.format(**values))
    settings.chmod(0o600)
    check(["slurmdbd"], variables)
    with open(state / "etc/slurm/slurm.conf", "a") as conf:
        conf.write(WITH_ACCOUNTING.format(**values))
    wait_until(lambda: "Cluster" in accounts(cluster), "accounts")
    cluster.administer("sacctmgr", "--immediate", "add", "cluster", "pretend")
    os.kill(int((state / "controller/pid").read_text()), signal.SIGTERM)
    wait_until(lambda: not (state / "controller/pid").exists(), "its end")
    cluster.administer("slurmctld")
    wait_until(lambda: is_idle(cluster), "all hosts idle")


def accounts(cluster: Cluster) -> str:
    try:
        return cluster.administer("sacctmgr", "show", "cluster")
    except PretendError:
        return ""


@pytest.mark.skipif(not shutil.which("slurmdbd"), reason="slurmdbd is missing")
def test_accounting_knows_a_job_that_slurm_has_forgotten(forgetful):
    cluster = forgetful.cluster
    keep_accounts(cluster)
    asked = ("--parsable", "--output=/dev/null", "--chdir=/", "--wrap=sleep 99")
    job = cluster.run("sbatch", *asked).strip()
    wait_until(lambda: queue(forgetful, "--states=running"), "it runs")
    cluster.run("scancel", job)
    wait_until(lambda: not queue(forgetful, "--states=all"), "it is forgotten")
    ask = f"from rankbench.launch.hosts.slurm import *; print(why_job_ended('{job}'))"
    said = cluster.run(sys.executable, "-c", ask)
    cause = "its Slurm job was cancelled; Slurm says CANCELLED on node1"
    assert said == f"job {job}: {cause}\n"
