"""Hosts that are lost while Snakemake runs: one by its slurmd, one by its link."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass

import faulty_strategies
import pytest
from allocations import Site
from logins import Snakemake, queue, table_of
from pretend_cluster import is_running
from pretend_host import wait_until

# Two minutes; test_ssh_faults.py loses a host in CI, too.
pytestmark = [pytest.mark.cluster, pytest.mark.long]

# The last cell waits until a host is free.
EXPERIMENT = """
name: lost
model: lenet
launches: 1
steps: 200
warmup: 0
gate: false
time_limit: 300
blocks:
  - strategy: [silent, cut]
    topology: 2x1
  - strategy: ddp
    topology: 1x1
"""
SILENT, CUT = "silent.gloo.2x1.lenet.digits", "cut.gloo.2x1.lenet.digits"
OTHER = "ddp.gloo.1x1.lenet.digits"

Table = dict[str, dict[str, str]]


@dataclass(frozen=True)
class Story:
    """The hosts that were lost, by cell; the table then, and after another run."""

    hosts: dict[str, str]
    then: Table
    later: Table


@pytest.fixture(scope="module")
def story(
    site: Site, run: Callable[..., subprocess.Popen[str]], snakemake: Snakemake
) -> Story:
    set_pace(site, seconds=1)
    site.project.experiment(EXPERIMENT, "lost.yaml")
    given = ("--config", "experiment=lost.yaml")
    session = run("snakemake", *given)
    hosts = {cell: second_host(site, cell) for cell in (SILENT, CUT)}
    cluster = site.cluster
    cut = cluster.hosts[hosts[CUT]]
    try:
        cluster.stop(hosts[SILENT])
        cut.cut()
        said, _ = session.communicate(timeout=300)
        assert session.returncode == 1, said
        # Ranks on the lost host go on until they miss the heartbeat of the supervisor.
        wait_until(lambda: not site.processes(), 40, "no process is left")
        then = table_of(site, "lost")
    finally:
        cut.mend()
        if is_running(cut):
            cluster.stop(cut.name)  # Slurm would find the host again, but later.
        for host in hosts.values():
            cluster.start(host)
        wait_until(lambda: all_idle(site), 60, "all hosts are back")
    set_pace(site, seconds=0)
    snakemake(*given)
    return Story(hosts, then, table_of(site, "lost"))


def set_pace(site: Site, *, seconds: float) -> None:
    """How long each step of the cells takes that lose a host."""
    source = faulty_strategies.SLOW.replace("0.25", str(seconds))
    for name in ("silent", "cut"):
        site.project.add_strategy(name, source)


def second_host(site: Site, cell: str) -> str:
    """The host of rank 1 of a cell, when it trains."""
    wait_until(lambda: site.trains("lost", cell), 240, f"{cell} trains")
    (hosts,) = (line.split()[2] for line in queue(site) if line.endswith(cell))
    return site.cluster.run("scontrol", "show", "hostnames", hosts).split()[1]


def all_idle(site: Site) -> bool:
    asked = ("sinfo", "--noheader", "--Node", "--format=%T")
    return set(site.cluster.run(*asked).split()) == {"idle"}


@pytest.mark.parametrize("cell", [SILENT, CUT])
def test_a_lost_host(site: Site, story: Story, cell: str) -> None:
    row = story.then[cell]
    assert row["status"] == "crashed", row
    assert f"the host {story.hosts[cell]} failed; rank 0 in training" in row["reason"]
    # The next run has measured what was missing.
    assert story.later[cell]["status"] == "ok"
    lost, again = site.records("lost")[cell]
    assert (lost["status"], lost["cause"]) == ("crashed", "site")
    assert again["status"] == "ok"


def test_the_other_cell_finishes(site: Site, story: Story) -> None:
    assert story.then[OTHER]["status"] == "ok"
    assert len(site.records("lost")[OTHER]) == 1


def test_nothing_is_left(site: Site, story: Story) -> None:
    assert not queue(site)
    assert not site.processes()
