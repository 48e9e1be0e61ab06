"""What sites and users do to launches: cores, quotas, suspended jobs, settings."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import faulty_strategies
import pytest
from allocations import Site
from logins import queue, start
from pretend_down import down
from pretend_host import Host, PretendError, wait_until
from pretend_up import up
from site_files import SITE_FILE

from rankbench.record import disturbances, repeated

pytestmark = pytest.mark.cluster

EXPERIMENT = """
name: {name}
strategy: {strategy}
model: lenet
topology: {topology}
launches: 1
steps: {steps}
gate: false
time_limit: 120
"""
CORES = len(os.sched_getaffinity(0))
QUOTAS = Path("/sys/fs/cgroup/cpu")
GPU = "a100-sxm4-80gb"


def plan(site: Site, name: str, topology: str, steps: int, *more: str) -> str:
    text = EXPERIMENT.format(name=name, strategy="ddp", topology=topology, steps=steps)
    (cell,) = site.plan("\n".join([text, *more]), name)
    return cell


@pytest.fixture(scope="module")
def bound(shared: Path, site: Site) -> Iterator[Site]:
    """One host: Slurm binds jobs and tasks to cores, and counts GPUs, as on most."""
    state, user = shared / "bound", site.cluster.user
    see = [shared, Path(sys.prefix)]
    try:
        cluster = up(
            state,
            hosts=1,
            cpus=CORES,
            user=user,
            shared=see,
            bind_cores=True,
            gpus=GPU,
        )
    except PretendError as error:
        pytest.skip(f"no cluster with ConstrainCores: {error}")
    facts = SITE_FILE.replace("nodes: 2", "nodes: 1").replace("cores: 1", "cores: 2")
    where = ("--nodes=1", "--time=10")
    yield dataclasses.replace(site, cluster=cluster, _facts=facts, where=where)
    down(cluster.state)


@pytest.mark.skipif(CORES < 2, reason="two cores")
@pytest.mark.parametrize("launcher", ["srun", "torchrun"])
def test_ranks_have_the_cores_of_their_job(bound, launcher):
    name = f"bound-{launcher}"
    cell = plan(bound, name, "1x2", 20, f"launcher: {launcher}")
    bound.measure(name, [cell], "--ntasks=2")
    (record,) = bound.records(name)[cell]
    cores = [rank["cores"] for rank in record["ranks"]]
    assert [len(own) for own in cores] == [1, 1], record["reason"]
    assert cores[0] != cores[1]
    assert "oversubscribed" not in str(bound.rows(name)[cell]["marks"])


def test_ranks_that_share_the_only_core_of_their_job_are_marked(bound):
    cell = plan(bound, "one-core", "1x2", 20, "launcher: torchrun")
    bound.measure("one-core", [cell], "--ntasks=1", "--cpus-per-task=1")
    (record,) = bound.records("one-core")[cell]
    first, second = (rank["cores"] for rank in record["ranks"])
    assert len(first) == 1, record["reason"]
    assert first == second
    assert "oversubscribed" in bound.rows("one-core")[cell]["marks"]


@contextmanager
def quota(host: Host, share: float) -> Iterator[None]:
    """A limit of the CPU time of all jobs of a host, in cores."""
    group = QUOTAS / host.link
    move = "for p in $(pgrep --exact slurmd); do echo $p > {}/cgroup.procs; done"
    host.do("mkdir", group)
    (group / "cpu.cfs_quota_us").write_text(f"{int(share * 100_000)}")
    host.do("sh", "-c", move.format(group))
    try:
        yield
    finally:
        host.do("sh", "-c", move.format(QUOTAS))
        wait_until(lambda: not (group / "cgroup.procs").read_text(), "jobs ended")
        group.rmdir()


@pytest.mark.skipif(not (QUOTAS / "cpu.stat").exists(), reason="cgroup v1")
def test_a_quota_below_the_cores_of_ranks_is_marked(bound):
    cell = plan(bound, "quota", "1x2", 150, "launcher: torchrun")
    with quota(bound.cluster.hosts["node1"], 0.5):
        bound.measure("quota", [cell], "--ntasks=2")
    (record,) = bound.records("quota")[cell]
    (host,) = record["surroundings"]
    assert host["quota"] == 0.5
    assert host["throttled"] > 0.05
    # As it holds all launches back, it is no reason to repeat one.
    assert not any("quota" in words for words in disturbances(record))
    assert "oversubscribed" in bound.rows("quota")[cell]["marks"]


def test_the_launch_of_a_suspended_job_is_repeated(site):
    site.project.add_strategy("slow", faulty_strategies.SLOW)
    text = EXPERIMENT.format(
        name="suspended", strategy="slow", topology="2x1", steps=24
    )
    (cell,) = site.plan(f"{text}repeat_disturbed: true\n", "suspended")
    process = site.start("suspended", cell)
    wait_until(lambda: site.trains("suspended", cell), "both ranks train")
    (job,) = (line.split()[0] for line in queue(site, "--states=running"))
    site.cluster.administer("scontrol", "suspend", job)
    time.sleep(5)
    site.cluster.administer("scontrol", "resume", job)
    said, _ = process.communicate(timeout=600)
    records = site.records("suspended")[cell]
    assert records[0]["status"] == "ok", said
    assert any("suspended" in words for words in disturbances(records[0]))
    assert records[0] in repeated(records)
    row = site.rows("suspended")[cell]
    assert (row["status"], row["launches_ok"]) == ("ok", 1)
    # The step during which the job stood still is in no number of the row.
    assert row["step_ms"] < 1000


def test_a_job_gets_gpus_whose_type_has_hyphens(bound):
    """As Slurm detects it; there is no such GPU, which the rank then says."""
    root = bound.project.root
    facts = SITE_FILE.replace("device: cpu", "device: cuda").replace("nodes: 2", "")
    (root / "slurm_profile/site.yaml").write_text(
        f"{facts}nodes: 1\ndevices_per_node: 2\ngres: gpu:{GPU}\n"
    )
    text = EXPERIMENT.format(name="typed", strategy="single", topology="1x1", steps=3)
    bound.project.experiment(text, "typed.yaml")
    asked = ("--config", "plots=false", "experiment=typed.yaml")
    said, _ = start(bound, "snakemake", *asked).communicate(timeout=600)
    (records,) = bound.records("typed").values()
    assert records[0]["status"] == "crashed", said
    assert "CUDA" in records[0]["reason"]
    shown = bound.cluster.run("scontrol", "show", "job")
    assert f"TresPerNode=gres:gpu:{GPU}:1" in shown
