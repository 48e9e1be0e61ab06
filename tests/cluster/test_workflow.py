"""Snakemake with a Slurm profile, on a real Slurm, as an ordinary user."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from allocations import Site
from logins import Snakemake, jobs, queue
from pretend_host import INTERFACE, wait_until
from site_files import SITE_FILE

from rankbench.cell import safe_name

pytestmark = pytest.mark.cluster

LONG = 60 * "n"
ONE, TWO = "ddp.gloo.1x1.net.corpus", "ddp.gloo.2x1.net.corpus"
# Two cells with one short launch each.
SHORT = """
strategy: ddp
model: ./net.py
data: ./corpus.py
topology: [1x1, 2x1]
launches: 1
steps: 3
gate: false
network_check: false
time_limit: 120
"""


@pytest.fixture(scope="module", autouse=True)
def _own_files(site: Site) -> None:
    site.project.add_own_files()


@pytest.fixture(scope="module")
def short(site: Site, snakemake: Snakemake) -> tuple[str, str]:
    """An experiment that has been measured: how Snakemake is asked for it."""
    site.project.experiment("name: short" + SHORT, "short.yaml")
    given = ("--config", "experiment=short.yaml")
    snakemake(*given)
    return given


def files_of(site: Site, cell: str) -> dict[Path, tuple[int, bytes]]:
    """All that there is of a cell: when it was written, and what."""
    found = (site.project.root / "results/short").rglob(f"{cell}*")
    files = [file for top in found for file in (top, *top.rglob("*")) if file.is_file()]
    return {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in files}


@contextmanager
def closed_partition(site: Site) -> Iterator[None]:
    """The partition takes jobs and starts none."""
    partition = ("scontrol", "update", "PartitionName=pretend")
    site.cluster.administer(*partition, "State=DOWN")
    try:
        yield
    finally:
        site.cluster.administer(*partition, "State=UP")


def test_preview_names_jobs_that_the_partition_does_not_allow(site, snakemake):
    site.project.experiment("name: limited" + SHORT, "limited.yaml")
    given = ("-n", "--config", "experiment=limited.yaml")
    partition = ("scontrol", "update", "PartitionName=pretend")
    site.cluster.administer(*partition, "MaxTime=3")
    try:
        said = snakemake(*given)
    finally:
        site.cluster.administer(*partition, "MaxTime=UNLIMITED")
    assert "set max_job_minutes: 3" in said
    assert "max_job_minutes" not in snakemake(*given)


def test_rerun_of_a_cell_touches_that_cell_only(site, short, snakemake):
    before, other = jobs(site), files_of(site, ONE)
    assert other
    snakemake(*short, f"rerun={TWO}")
    (new,) = jobs(site).keys() - before.keys()
    assert jobs(site)[new].endswith(f"rule_job_wildcards_short_{TWO}")
    assert files_of(site, ONE) == other
    attempts = {cell: row["attempt"] for cell, row in site.table("short").items()}
    assert attempts == {ONE: "1", TWO: "2"}


def test_what_is_measured_needs_no_job_though_scripts_of_the_results_change(
    site, short, snakemake
):
    before, files = jobs(site), (files_of(site, ONE), files_of(site, TWO))
    for name in ("render/files.py", "sections/table.py"):
        script = site.project.root / "src/rankbench/results" / name
        script.write_text(script.read_text() + "\n# changed\n")
    assert "0 to measure, 2 measured" in snakemake(*short)
    assert jobs(site).keys() <= before.keys()
    assert (files_of(site, ONE), files_of(site, TWO)) == files


def test_lost_session_is_waited_for_and_nothing_is_measured_twice(site, run):
    site.project.experiment("name: lost" + SHORT, "lost.yaml")
    given = ("--config", "experiment=lost.yaml")
    status = ("rankbench.cli", "status", "lost.yaml")

    def in_queue() -> bool:
        return len([job for job in queue(site) if "_lost_" in job]) == 2

    # The jobs wait until the next run has seen them, however slow this machine is.
    with closed_partition(site):
        session = run("snakemake", *given)
        wait_until(in_queue, "both cells are in the queue")
        said, _ = run(*status).communicate(timeout=600)
        os.killpg(session.pid, signal.SIGKILL)
        session.communicate()
        for cell in (ONE, TWO):
            assert f"0/1  {cell}\n" in said
            assert f"log: results/lost/work/logs/{cell}.log\n" in said
            assert "again: rankbench rerun lost.yaml" in said
        assert "job " in said

        again = run("snakemake", *given, "plots=false")
        assert again.stdout is not None
        waits = "2 jobs of an earlier run are still in the queue"
        assert any(waits in line for line in again.stdout)
    assert "2 cells: 0 to measure, 2 measured" in again.stdout.read()
    assert again.wait() == 0
    assert [len(found) for found in site.records("lost").values()] == [1, 1]
    assert {row["status"] for row in site.table("lost").values()} == {"ok"}
    said, _ = run(*status).communicate(timeout=600)
    assert f"ok             1/1  {TWO}\n" in said
    assert " on node" in said
    wait_until(lambda: not queue(site), "no job is left")
    site.wait_until_gone()


def test_a_run_says_why_its_jobs_wait_when_the_reason_changes(site, run):
    text = "name: waits" + SHORT.replace("[1x1, 2x1]", "1x1")
    site.project.experiment(text, "waits.yaml")
    with closed_partition(site):
        process = run("rankbench.cli", "run", "waits.yaml", "--no-plots")
        assert process.stdout is not None
        said = iter(process.stdout)
        assert any("jobs that wait (PartitionDown): 1" in line for line in said)
        (job,) = (line.split()[0] for line in queue(site) if "_waits_" in line)
        site.cluster.run("scontrol", "hold", job)
        assert any("jobs that wait (JobHeldUser): 1" in line for line in said)
        site.cluster.run("scontrol", "release", job)
    process.communicate(timeout=600)
    assert site.table("waits")[ONE]["status"] == "ok"


def test_job_that_slurm_refuses_says_why_and_the_table_shows_it(
    site, profile, snakemake
):
    text = "name: refused" + SHORT.replace("[1x1, 2x1]", "1x1")
    site.project.experiment(text, "refused.yaml")
    facts = profile / "site.yaml"
    facts.write_text(SITE_FILE.replace("partition: pretend", "partition: nonsense"))
    try:
        said = snakemake("--config", "experiment=refused.yaml", status=1)
    finally:
        facts.write_text(SITE_FILE)
    assert "invalid partition specified: nonsense" in said
    row = site.table("refused")[ONE]
    assert row["status"] == "not-run"
    assert "invalid partition specified: nonsense" in row["reason"]
    assert "partition in site.yaml" in row["reason"]


def test_options_of_the_site_reach_sbatch_and_its_setup_the_ranks(
    site, profile, snakemake
):
    text = "name: {}" + SHORT.replace("[1x1, 2x1]", "1x1")
    facts = profile / "site.yaml"
    more = "sbatch: {{{}}}\nsetup: |\n  export GLOO_WORD='a {{b}}'\n"
    try:
        facts.write_text(SITE_FILE + more.format("constraint: nosuch"))
        site.project.experiment(text.format("lacking"), "lacking.yaml")
        snakemake("--config", "experiment=lacking.yaml", status=1)
        facts.write_text(SITE_FILE + more.format("nice: 7, switches: 1"))
        # Snakemake takes such a name for an endless loop; logs have it in theirs.
        site.project.experiment(text.format(LONG), "nice.yaml")
        snakemake("--config", "experiment=nice.yaml")
    finally:
        facts.write_text(SITE_FILE)
    row = site.table("lacking")[ONE]
    assert row["status"] == "not-run"
    assert "feature" in row["reason"]
    assert "correct sbatch in site.yaml" in row["reason"]
    (records,) = site.records(safe_name(LONG)).values()
    for record in records:
        assert record["launcher"]["env"]["GLOO_WORD"] == "a {b}"


def test_site_check_names_what_is_wrong(profile, snakemake):
    facts = profile / "site.yaml"
    facts.write_text(SITE_FILE.replace(INTERFACE, "ib0"))
    try:
        said = snakemake("site_check", status=1)
    finally:
        facts.write_text(SITE_FILE)
    faults = [line for line in said.splitlines() if line.startswith("FAULT")]
    assert [fault.split()[1] for fault in faults] == ["node1:", "node2:"]
    assert all("no interface ib0 that is up" in fault for fault in faults)


def test_no_more_jobs_are_queued_than_the_cap(site, run):
    text = "name: capped\nlearning_rate: [0.1, 0.2]" + SHORT
    site.project.experiment(text, "capped.yaml")

    def capped() -> int:
        return len([job for job in queue(site) if "_capped_" in job])

    with closed_partition(site):
        session = run("snakemake", "--jobs=3", "--config", "experiment=capped.yaml")
        try:
            wait_until(lambda: capped() == 3, "as many jobs as the cap")
            time.sleep(3)  # A fourth job would be queued by now.
            assert capped() == 3
        finally:
            os.killpg(session.pid, signal.SIGKILL)
            session.communicate()
            site.cluster.run("scancel", "--user", site.cluster.user)
