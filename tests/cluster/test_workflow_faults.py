"""What goes wrong while Snakemake runs: every cell has its row, and the others finish.

One run has all of it. The cells' jobs end in five ways; two further runs want the same
directory.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

import faulty_strategies
import pytest
from allocations import Site
from logins import queue
from pretend_host import wait_until

pytestmark = pytest.mark.cluster

EXPERIMENT = """
name: faults
strategy: [cancelled, late, killed, greedy, ddp]
model: lenet
topology: 2x1
launches: 1
steps: 400
warmup: 0
gate: false
network_check: false
time_limit: 350
"""
# These cells run until they are ended.
ENDLESS = faulty_strategies.SLOW.replace("0.25", "1")
SOURCES = {
    "cancelled": ENDLESS,
    "late": ENDLESS,
    "killed": faulty_strategies.KILLED,
    "greedy": faulty_strategies.GREEDY,
}
WORDS = {
    "cancelled": ("cancelled", "its Slurm job was cancelled"),
    "late": ("cancelled", "time limit of the Slurm job reached; rank 0 in"),
    "killed": ("crashed", "rank 1 was ended by SIGKILL"),
    "greedy": ("oom", "at the memory limit of the job"),
    "ddp": ("ok", ""),
}


def cell_of(strategy: str) -> str:
    return f"{strategy}.gloo.2x1.lenet.digits"


@dataclass(frozen=True)
class Outcome:
    """A run, others that it kept out, and what `rankbench status` said at its end."""

    pid: int
    kept_out: list[subprocess.CompletedProcess[str]]
    status: str


@pytest.fixture(scope="module")
def outcome(site: Site, run: Callable[..., subprocess.Popen[str]]) -> Outcome:
    for name, source in SOURCES.items():
        site.project.add_strategy(name, source)
    site.project.experiment(EXPERIMENT, "faults.yaml")
    session = run("snakemake", "--config", "experiment=faults.yaml")
    end_job(site, "cancelled", "scancel {job}")
    again = session.args
    assert isinstance(again, list)
    elsewhere = ["env", f"--chdir={site.project.root}", *again]
    far = site.cluster.hosts["node3"].command(elsewhere)
    kept_out = [
        subprocess.run(
            command,
            cwd=site.project.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        for command in (again, far)
    ]
    # This is like reaching the time limit, which Slurm checks every half minute.
    end_job(site, "late", "scontrol update JobId={job} EndTime=now")
    said, _ = session.communicate(timeout=600)
    assert session.returncode == 1, said
    told = run("rankbench.cli", "status", "faults.yaml")
    return Outcome(session.pid, kept_out, told.communicate(timeout=600)[0])


def end_job(site: Site, strategy: str, order: str) -> None:
    """Give an order about the job of a cell, when its ranks train."""
    cell = cell_of(strategy)
    wait_until(lambda: site.trains("faults", cell), f"{cell} trains")
    (job,) = (line.split()[0] for line in queue(site) if line.endswith(cell))
    site.cluster.run(*order.format(job=job).split())


@pytest.mark.parametrize("strategy", WORDS)
def test_every_cell_has_its_row(site, outcome, strategy):
    cell, (status, words) = cell_of(strategy), WORDS[strategy]
    row = site.table("faults")[cell]
    assert row["status"] == status, row["reason"]
    assert words in row["reason"]
    log = f"results/faults/work/logs/{cell}.log"
    ok = int(status == "ok")
    lines = outcome.status.splitlines()
    at = next(n for n, line in enumerate(lines) if cell in line)
    assert lines[at] == f"{status:<12}   {ok}/1  {cell}"
    end = next(n for n, line in enumerate(lines) if line.endswith(f"log: {log}"))
    # A reason may be longer than a line.
    assert words in " ".join(map(str.strip, lines[at + 1 : end]))
    assert words in (site.project.root / log).read_text()


def test_two_runs_in_one_directory(outcome):
    for done in outcome.kept_out:
        assert done.returncode == 1
        holder = f"process {outcome.pid} on {socket.gethostname()} ("
        assert f"results/faults is in use by {holder}" in done.stdout


def test_nothing_is_left(site, outcome):
    wait_until(lambda: not queue(site), "no job is left")
    site.wait_until_gone()
