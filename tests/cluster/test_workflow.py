"""Snakemake with a Slurm profile, on a real Slurm, as an ordinary user."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from allocations import Site
from pretend_host import INTERFACE, wait_until

pytestmark = pytest.mark.cluster

SITE_FILE = f"""
scheduler: slurm
software: native
nodes: 2
device: cpu
cores: 1
memory: 2000
partition: pretend
interface: {INTERFACE}
"""
ONE, TWO = "ddp.gloo.1x1.lenet.digits", "ddp.gloo.2x1.lenet.digits"
# Two cells of one launch each, which is short.
SHORT = """
strategy: ddp
model: lenet
topology: [1x1, 2x1]
launches: 1
steps: 3
gate: false
time_limit: 120
"""

Snakemake = Callable[..., str]


@pytest.fixture(scope="module")
def profile(site: Site) -> Path:
    """The profile of the project, with the facts of the pretend cluster."""
    folder = site.project.root / "slurm_profile"
    (folder / "site.yaml").write_text(SITE_FILE)
    return folder


@pytest.fixture
def run(site: Site, profile: Path) -> Callable[..., subprocess.Popen[str]]:
    """Start a command of this Python's environment as the user, in the project."""
    beside = Path(site.python).parent
    variables = {
        "PYTHONPATH": str(site.project.root / "src"),
        "PATH": f"{beside}:{os.environ['PATH']}",
        "SNAKEMAKE_PROFILE": profile.name,
    }

    def start(*argv: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            site.cluster.command((site.python, "-m", *argv), variables),
            cwd=site.project.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    return start


@pytest.fixture
def snakemake(run: Callable[..., subprocess.Popen[str]]) -> Snakemake:
    """Run Snakemake to its end; what it said."""

    def go(*argv: str, status: int = 0) -> str:
        process = run("snakemake", *argv)
        said, _ = process.communicate(timeout=300)
        assert process.returncode == status, said
        return said

    return go


def table_of(site: Site, name: str) -> dict[str, dict[str, str]]:
    with open(site.project.root / f"results/{name}/table.csv") as file:
        return {row["cell"]: row for row in csv.DictReader(file)}


def queue(site: Site, *options: str) -> list[str]:
    """Jobs of the user as the documentation shows them."""
    asked = ("squeue", "--me", "--noheader", "--format=%i %T %N %k", *options)
    return site.cluster.run(*asked).splitlines()


def test_experiment_to_a_table(site: Site, snakemake: Snakemake) -> None:
    site.project.experiment("name: short" + SHORT, "short.yaml")
    given = ("--config", "experiment=short.yaml")
    preview = snakemake("-n", *given)
    assert "2 jobs; the longest may take 5 minutes: " in preview
    assert not (site.project.root / "results/short").exists()

    snakemake(*given)
    table = table_of(site, "short")
    assert {row["status"] for row in table.values()} == {"ok"}, table
    records = site.records("short")
    (two,) = records[TWO]
    assert [rank["host"] for rank in two["ranks"]] == two["launcher"]["hosts"]
    assert len(set(two["launcher"]["hosts"])) == 2
    comment = f"rule_cell_wildcards_short_{TWO}"
    number, state, *_ = next(
        line for line in queue(site, "--states=all") if line.endswith(comment)
    ).split()
    assert (number, state) == (two["job_id"], "COMPLETED")
    known = site.cluster.run("scontrol", "show", "job", number)
    for expected in ("NumNodes=2", "NumTasks=2", "TimeLimit=00:05:00", "Requeue=0"):
        assert expected in known
    assert "MinMemoryNode=2000M" in known

    # What is there is not measured again, and needs no job.
    jobs = queue(site, "--states=all")
    assert "0 to measure, 2 measured" in snakemake(*given)
    assert site.records("short") == records
    assert queue(site, "--states=all") == jobs


def test_lost_session_is_waited_for_and_nothing_is_measured_twice(
    site: Site, run: Callable[..., subprocess.Popen[str]], snakemake: Snakemake
) -> None:
    site.project.experiment("name: lost" + SHORT, "lost.yaml")
    given = ("--config", "experiment=lost.yaml")
    session = run("snakemake", *given)
    status = ("rankbench.cli", "status", "--experiment", "lost.yaml")

    def in_queue() -> bool:
        return len([job for job in queue(site) if "_lost_" in job]) == 2

    wait_until(in_queue, 90, "both cells are in the queue")
    said, _ = run(*status).communicate(timeout=60)
    os.killpg(session.pid, signal.SIGKILL)
    session.communicate()
    for cell in (ONE, TWO):
        assert f"0/1  {cell}\n" in said
        assert f"log: results/lost/logs/{cell}.log\n" in said
        assert f"again: make rerun CELL={cell} EXPERIMENT=lost.yaml" in said
    assert "job " in said

    left = len(queue(site))
    again = snakemake(*given)
    assert f"{left} jobs of an earlier run are still in the queue" in again
    assert "2 cells: 0 to measure, 2 measured" in again
    assert [len(found) for found in site.records("lost").values()] == [1, 1]
    assert {row["status"] for row in table_of(site, "lost").values()} == {"ok"}
    said, _ = run(*status).communicate(timeout=60)
    assert f"ok             1/1  {TWO}\n" in said
    assert " on node" in said


def test_job_that_slurm_refuses_says_why_and_the_table_shows_it(
    site: Site, profile: Path, snakemake: Snakemake
) -> None:
    text = "name: refused" + SHORT.replace("[1x1, 2x1]", "1x1")
    site.project.experiment(text, "refused.yaml")
    facts = profile / "site.yaml"
    facts.write_text(SITE_FILE.replace("partition: pretend", "partition: nonsense"))
    try:
        said = snakemake("--config", "experiment=refused.yaml", status=1)
    finally:
        facts.write_text(SITE_FILE)
    assert "invalid partition specified: nonsense" in said
    assert table_of(site, "refused")[ONE]["status"] == "not-run"


def test_site_check_names_what_is_wrong(profile: Path, snakemake: Snakemake) -> None:
    facts = profile / "site.yaml"
    facts.write_text(SITE_FILE.replace(INTERFACE, "ib0"))
    try:
        said = snakemake("site_check", status=1)
    finally:
        facts.write_text(SITE_FILE)
    faults = [line for line in said.splitlines() if line.startswith("FAULT")]
    assert [fault.split()[1] for fault in faults] == ["node1:", "node2:"]
    assert all("no interface ib0 that is up" in fault for fault in faults)
