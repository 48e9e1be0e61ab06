"""The pretend cluster is what the other tests on it rely on."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pretend_cluster import Cluster
from pretend_host import INTERFACE, PretendError, has_memory_groups, wait_until

HERE = Path(__file__).resolve().parent
MIB = 2**20

# Other tests fail, too, if the pretend cluster is not as it should be.
pytestmark = [pytest.mark.cluster, pytest.mark.long]

AddUp = Callable[[], list[dict[str, Any]]]


def submit(cluster: Cluster, *options: str, command: str) -> str:
    asked = ("sbatch", "--parsable", *options, f"--wrap={command}")
    return cluster.run(*asked).strip()


def job(cluster: Cluster, number: str) -> dict[str, str]:
    """What the controller knows of a job."""
    told = cluster.run("scontrol", "--oneliner", "show", "job", number).split()
    return dict(pair.split("=", 1) for pair in told if "=" in pair)


@pytest.fixture(scope="module")
def limited(cluster: Cluster, shared: Path) -> str:
    """A job that will reach its memory limit, submitted early."""
    options = ("--nodelist=node4", f"--output={shared}/%j.log", f"--chdir={shared}")
    hoard = "(head -c 300M /dev/zero; sleep 20) | tail"
    return submit(cluster, *options, "--mem=100", command=hoard)


@pytest.fixture
def add_up(cluster: Cluster, shared: Path, python: str) -> AddUp:
    """Run cluster_ranks.py on the first two hosts: what its ranks told."""
    script = shared / "cluster_ranks.py"
    shutil.copy(HERE / script.name, script)

    def run() -> list[dict[str, Any]]:
        launch = ("srun", "--nodelist=node1,node2", "--exclusive", python, script)
        interface = {"GLOO_SOCKET_IFNAME": INTERFACE}
        told = cluster.run(*launch, "node1", environment=interface, cwd=shared)
        ranks = [json.loads(line) for line in told.splitlines() if line[0] == "{"]
        return sorted(ranks, key=lambda rank: str(rank["host"]))

    return run


@pytest.mark.usefixtures("limited")
def test_hosts_have_their_own_name_interface_processes_and_files(cluster):
    script = """
        touch /tmp/$(hostname) /dev/shm/$(hostname)
        sleep 1
        echo $(hostname) $(ls /sys/class/net) $(cd /tmp && ls node*) $(ls /dev/shm) \\
            $(pgrep -c slurmd$) $(getent hosts node3) $(id -un)
    """
    told = cluster.run("srun", "--nodelist=node1,node2", "sh", "-c", script)
    third = f"{cluster.hosts['node3'].address} node3 {cluster.user}"
    assert sorted(told.splitlines()) == [
        f"node1 {INTERFACE} lo node1 node1 1 {third}",
        f"node2 {INTERFACE} lo node2 node2 1 {third}",
    ]


def test_job_finds_slurm_without_its_variable(cluster, shared):
    output = shared / "found"
    options = ("--wait", "-N2", f"--chdir={shared}", f"--output={output}")
    submit(cluster, *options, command="unset SLURM_CONF; srun hostname")
    assert len(set(output.read_text().split())) == 2


def test_orphan_on_a_host_leaves_no_zombie(cluster):
    host = cluster.hosts["node1"]
    host.do("sh", "-c", "sleep 0.1 & exit")
    time.sleep(0.3)
    assert "sleep" not in host.do("ps", "-eo", "stat,args").replace(
        "sleep infinity", ""
    )


def test_queue_shows_the_comment(cluster):
    number = submit(cluster, "--comment=ddp.gloo.2x1", "--hold", command="true")
    asked = ("squeue", "--noheader", f"--jobs={number}", "--format=%k")
    assert cluster.run(*asked).strip() == "ddp.gloo.2x1"
    cluster.run("scancel", number)
    assert job(cluster, number)["JobState"] == "CANCELLED"


def test_open_mpi_starts_over_pmix(cluster, shared):
    if not shutil.which("mpicc"):
        pytest.skip("no mpicc: apt-get install openmpi-bin libopenmpi-dev gcc")
    program = shared / "hello_mpi"
    subprocess.run(["mpicc", HERE / "hello_mpi.c", "-o", program], check=True)
    launch = ("srun", "--mpi=pmix", "--nodelist=node1,node2", "--ntasks=4")
    assert sorted(cluster.run(*launch, program).splitlines()) == [
        "0 4 node1 10",
        "1 4 node1 10",
        "2 4 node2 10",
        "3 4 node2 10",
    ]


def test_gloo_adds_up_across_hosts_that_share_no_core(add_up):
    first, second = add_up()
    assert (first["host"], second["host"]) == ("node1", "node2")
    assert first["sum"] == second["sum"] == [3.0]
    assert not set(first["cores"]) & set(second["cores"])


def test_slow_link_takes_bytes_over_rate(cluster, add_up):
    megabit = 300
    host = cluster.hosts["node2"]
    host.slow(f"{megabit}mbit")
    try:
        slow = max(rank["seconds"] for rank in add_up())
    finally:
        host.mend()
    # In a ring of two ranks, each sends half of the numbers twice, and receives as
    # many.
    assert slow == pytest.approx(32 * MIB * 8 / (megabit * 1e6), rel=0.2)


def test_mended_link_is_fast_again(cluster, add_up):
    host = cluster.hosts["node2"]
    host.slow("10mbit")
    host.mend()
    assert max(rank["seconds"] for rank in add_up()) < 32 * MIB * 8 / 300e6


def test_cut_link_carries_nothing_until_mended(cluster):
    near, far = cluster.hosts["node1"], cluster.hosts["node2"]
    # The port of slurmd, which answers.
    knock = ("timeout", "3", "bash", "-c", f": < /dev/tcp/{far.name}/6818")
    near.do(*knock)
    far.cut()
    try:
        with pytest.raises(PretendError):
            near.do(*knock)
    finally:
        far.mend()
    near.do(*knock)


def test_memory_limit_ends_a_job(cluster, shared, limited):
    ended, said = "FAILED", "exceeded memory limit"
    if has_memory_groups():
        ended, said = "OUT_OF_MEMORY", "oom-kill"
    wait_until(lambda: job(cluster, limited)["JobState"] == ended, 30, "job killed")
    assert said in (shared / f"{limited}.log").read_text()
