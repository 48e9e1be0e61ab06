"""What goes wrong with launches over two hosts: typed, in words, and nothing left."""

from __future__ import annotations

import dataclasses
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import faulty_strategies
import pretend_host
import pretend_up
import pytest
from allocations import Site
from pretend_cluster import Cluster
from pretend_down import down
from pretend_host import INTERFACE, PretendError, wait_until
from pretend_up import up

pytestmark = pytest.mark.cluster

EXPERIMENT = """
name: {name}
strategy: {strategy}
model: lenet
topology: 2x1
launcher: {launcher}
launches: 1
steps: 40
gate: false
network_check: false
time_limit: {limit}
"""


def plan(
    site: Site,
    strategy: str,
    launcher: str = "srun",
    limit: int = 300,
    *,
    name: str = "",
    facts: str = "",
) -> str:
    """An experiment with one strategy, which may be one that goes wrong; its cell."""
    name = name or f"{strategy}-{launcher}"
    if source := getattr(faulty_strategies, strategy.upper(), None):
        site.project.add_strategy(strategy, source)
    text = EXPERIMENT.format(
        name=name, strategy=strategy, launcher=launcher, limit=limit
    )
    (cell,) = site.plan(text, name, facts=facts)
    return cell


@pytest.mark.parametrize(
    ("launcher", "words"),
    [
        ("srun", "rank 1 was ended by SIGKILL"),
        ("torchrun", "rank 1 was ended by SIGKILL"),
        ("manual", "rank 1 was ended by SIGKILL"),
        # mpirun reports how the process that it started there has ended.
        ("mpirun", "rank 1"),
    ],
)
def test_a_rank_of_another_host_that_is_killed(site, launcher, words):
    cell = plan(site, "killed", launcher)
    name = f"killed-{launcher}"
    site.measure(name, [cell])
    (record,) = site.records(name)[cell]
    assert record["status"] == "crashed"
    assert words in record["reason"]
    site.wait_until_gone()


HOLD = """
import os, socket, time
from rankbench.launch.hosts.slurm import SlurmJob
port = SlurmJob(os.environ["SLURM_JOB_ID"], ()).port(1)
with socket.create_server(("", port)):
    open("held", "w").close()
    time.sleep(600)
"""


def test_a_port_that_is_taken(site):
    cell = plan(site, "ddp", name="port")
    hold = ("srun", "--overlap", "--nodes=1", "--nodelist=node1", site.python, "-c")
    wait = "until [ -e held ]; do sleep 0.1; done"
    site.measure("port", [cell], before=f"{shlex.join([*hold, HOLD])} & {wait}")
    first, second = site.records("port")[cell]
    assert (first["status"], first["cause"]) == ("cancelled", "host")
    assert second["status"] == "ok"


def test_hosts_with_different_numbers_of_tasks_are_refused(site):
    cell = plan(site, "ddp", name="uneven")
    with pytest.raises(PretendError, match="every host must have equally many"):
        site.measure("uneven", [cell], "--ntasks=3")
    assert not site.records("uneven")


@pytest.mark.parametrize(
    "launcher",
    ["srun", *(pytest.param(x, marks=pytest.mark.long) for x in ("mpirun", "spawn"))],
)
def test_a_time_limit_ends_the_ranks_of_all_hosts(site, launcher):
    cell = plan(site, "hang", launcher, limit=15)
    site.measure(f"hang-{launcher}", [cell])
    (record,) = site.records(f"hang-{launcher}")[cell]
    assert record["status"] == "timeout"
    assert "time limit of 15 s reached: rank 0 in" in record["reason"]
    site.wait_until_gone()


def test_a_cancelled_job(site):
    cell = plan(site, "slow", "torchrun")
    run = site.start("slow-torchrun", cell, "--job-name=to-be-cancelled")
    wait_until(lambda: site.trains("slow-torchrun", cell), "training")
    site.cluster.run("scancel", "--name=to-be-cancelled")
    run.communicate(timeout=600)
    (record,) = site.records("slow-torchrun")[cell]
    assert (record["status"], record["cause"]) == ("cancelled", "user")
    assert record["reason"].startswith("its Slurm job was cancelled")
    site.wait_until_gone()


def test_ranks_end_themselves_when_their_supervisor_is_killed(site):
    cell = plan(site, "slow", "srun")
    run = site.start("slow-srun", cell)
    wait_until(lambda: site.trains("slow-srun", cell), "training")
    # The pattern must not match salloc, whose end Slurm would notice a minute later.
    supervisor = f"^{site.python} -m rankbench.launch.*{cell}"
    site.cluster.run("pkill", "--signal=KILL", "--full", supervisor)
    run.communicate(timeout=600)
    site.wait_until_gone()
    site.measure("slow-srun", [cell])
    lost, again = site.records("slow-srun")[cell]
    assert (lost["status"], lost["cause"]) == ("cancelled", "user")
    assert again["status"] == "ok"


@pytest.fixture
def without_groups(
    shared: Path, site: Site, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Site]:
    """A cluster on which no control groups limit the memory of jobs."""
    for module in (pretend_host, pretend_up):
        monkeypatch.setattr(module, "has_memory_groups", lambda: False)
    state, user = shared / "without-groups", site.cluster.user
    cluster = up(state, hosts=2, user=user, shared=[shared, Path(sys.prefix)])
    yield dataclasses.replace(site, cluster=cluster)
    down(cluster.state)


def check_memory_limit(site: Site, name: str) -> None:
    cell = plan(site, "greedy", name=name)
    site.measure(name, [cell], "--mem=1500")
    (record,) = site.records(name)[cell]
    assert record["status"] == "oom", record["reason"]
    assert "at the memory limit of the job" in record["reason"]
    site.wait_until_gone()


def test_a_memory_limit(site):
    check_memory_limit(site, "greedy")


def test_a_memory_limit_that_slurm_looks_after_itself(without_groups):
    check_memory_limit(without_groups, "greedy-without-groups")


@pytest.mark.parametrize(
    "launcher", ["srun", pytest.param("torchrun", marks=pytest.mark.long)]
)
def test_a_host_that_cannot_resolve_another(site, launcher):
    name = f"unknown-{launcher}"
    cell = plan(site, "ddp", launcher, name=name)
    host = site.cluster.hosts["node2"]
    known = (site.cluster.state / "etc/hosts").read_text().splitlines(keepends=True)
    fewer = site.cluster.state / "fewer-hosts"
    fewer.write_text("".join(line for line in known if not line.endswith(" node1\n")))
    host.do("mount", "--bind", fewer, "/etc/hosts")
    try:
        with pytest.raises(PretendError, match="is left to the next run"):
            site.measure(name, [cell])
    finally:
        host.do("umount", "/etc/hosts")
    records = site.records(name)[cell]
    # The launch was repeated, but not more often than allowed.
    assert len(records) == 3
    for record in records:
        assert (record["status"], record["cause"]) == ("cancelled", "host")
        assert "the host node2 cannot resolve node1: " in record["reason"]
    site.wait_until_gone()


MEET = """
import datetime, os, pathlib, sys
from torch import distributed
from rankbench.rank.world.places import choose_rendezvous, places_here
(place,) = places_here(2, 1)
url, _ = choose_rendezvous("file", pathlib.Path(sys.argv[1]), "node1", 20001)
patience = datetime.timedelta(minutes=5)
distributed.init_process_group(
    "gloo", init_method=url, rank=place.rank, world_size=2, timeout=patience
)
distributed.barrier()
os._exit(0)  # takes nothing away, as one that is killed
"""


def test_a_stale_rendezvous_file(site, shared):
    folder = shared / "meetings"
    folder.mkdir()
    shutil.chown(folder, site.cluster.user)
    hosts = ("srun", "--nodes=2", "--nodelist=node1,node2", "--exclusive")
    variables = {
        "PYTHONPATH": str(site.project.root / "src"),
        "GLOO_SOCKET_IFNAME": INTERFACE,
    }
    for times in (1, 2):
        command = (*hosts, site.python, "-c", MEET, folder)
        site.cluster.run(*command, environment=variables)
        assert len(list(folder.glob("rendezvous*"))) == times


SCRATCH = "/tmp/scratch"  # noqa: S108 (a host of the cluster has a /tmp of its own)


@pytest.fixture
def scratch(cluster: Cluster) -> Iterator[str]:
    """Line of the site file for a folder that is small on node2."""
    for name in ("node1", "node2"):
        cluster.hosts[name].do("mkdir", "-p", "--mode=1777", SCRATCH)
    host = cluster.hosts["node2"]
    host.do("mount", "-t", "tmpfs", "-o", "size=4m,mode=1777", "tmpfs", SCRATCH)
    yield f"scratch: {SCRATCH}\n"
    host.do("umount", SCRATCH)


def test_a_full_scratch(site, scratch):
    host = site.cluster.hosts["node2"]
    cell = plan(site, "ddp", name="full", facts=scratch)
    host.do("sh", "-c", f"head -c 8M /dev/zero >{SCRATCH}/filler || true")
    with pytest.raises(PretendError, match="run again to continue"):
        site.measure("full", [cell])
    host.do("rm", f"{SCRATCH}/filler")
    site.measure("full", [cell])
    full, again = site.records("full")[cell]
    assert (full["status"], full["cause"]) == ("cancelled", "site")
    why = f"scratch of the host node2: {SCRATCH}: No space left on device"
    assert full["reason"].startswith(why)
    assert again["status"] == "ok"
    assert again["launcher"]["env"]["TMPDIR"].startswith(f"{SCRATCH}/rankbench.")
    for name in ("node1", "node2"):
        assert not site.cluster.hosts[name].do("ls", SCRATCH)


def test_a_scratch_that_a_rank_fills(site, scratch):
    cell = plan(site, "spills", facts=scratch)
    with pytest.raises(PretendError, match="run again to continue"):
        site.measure("spills-srun", [cell])
    (record,) = site.records("spills-srun")[cell]
    assert (record["status"], record["cause"]) == ("cancelled", "site")
    assert "No space left on device (on the host node2; TMPDIR" in record["reason"]
    assert not site.cluster.hosts["node2"].do("ls", SCRATCH)
