"""docs/slurm.md on a pretend cluster: its commands, and the jobs that they start."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from allocations import Site
from logins import jobs

from conftest import ROOT
from documents import read_steps

pytestmark = pytest.mark.cluster

Run = Callable[[str], str]

NAME, TITLE = "first", "## From nothing to a published table"
TWO = "ddp.gloo.2x1.lenet.synthetic"


@pytest.fixture(scope="module")
def type_in(site: Site) -> Run:
    """Type a line into the shell of the user on the login side; what it says."""
    beside = Path(site.python).parent
    variables = {
        "PYTHONPATH": str(site.project.root / "src"),
        "PATH": f"{beside}:{os.environ['PATH']}",
        "SNAKEMAKE_PROFILE": "slurm_profile",
    }

    def go(line: str) -> str:
        done = subprocess.run(
            site.cluster.command(["bash", "-c", line], variables),
            cwd=site.project.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}"
        return done.stdout

    return go


@pytest.fixture(scope="module")
def walk(site: Site, type_in: Run) -> dict[str, str]:
    """What each command of the tutorial said."""
    text = (ROOT / "docs/slurm.md").read_text()
    said: dict[str, str] = {}
    for step in read_steps(text.partition(TITLE)[2].partition("\n## ")[0]):
        if step.file:
            body = step.text.replace("launches: 6", "launches: 1")
            site.project.experiment(body, step.file)
            shutil.chown(site.project.root / step.file, site.cluster.user)
            continue
        said[step.text] = type_in(step.text)
        if step.text.endswith(" -n"):
            assert not (site.project.root / f"results/{NAME}").exists()
        if not step.text.startswith("rankbench run "):
            # Numbers differ between machines and runs.
            lines = {without_numbers(line) for line in said[step.text].splitlines()}
            assert {*map(without_numbers, step.shown)} - {"..."} <= lines, said
    return said


def without_numbers(line: str) -> str:
    return re.sub(r"\d[\d.,]*", "0", line)


def test_tutorial_ends_with_a_verified_bundle(site, walk):
    last = list(walk)[-1]
    assert last == f"rankbench verify results/{NAME}/results.tar.zst"
    assert "verified: its numbers were derived again" in walk[last]
    table = site.table(NAME)
    assert {row["status"] for row in table.values()} == {"ok", "unsupported"}, table
    assert table[TWO]["status"] == "ok"


def test_job_has_what_its_cells_need(site, walk):
    (two,) = site.records(NAME)[TWO]
    assert [rank["host"] for rank in two["ranks"]] == two["launcher"]["hosts"]
    assert len(set(two["launcher"]["hosts"])) == 2
    comment = f"rule_job_wildcards_{NAME}_experiment"
    assert jobs(site)[two["job_id"]].startswith("COMPLETED")
    assert jobs(site)[two["job_id"]].endswith(comment)
    known = site.cluster.run("scontrol", "show", "job", two["job_id"])
    site_file = (site.project.root / "slurm_profile/site.yaml").read_text()
    (memory,) = re.findall(r"^memory: (\d+)$", site_file, re.MULTILINE)
    preview = walk[f"rankbench run {NAME}.yaml -n"]
    (minutes,) = re.findall(r"1 job; the longest may take (\d+) ", preview)
    for expected in ("NumNodes=2", "Requeue=0", f"MinMemoryNode={memory}M"):
        assert expected in known
    assert f"TimeLimit=00:{int(minutes):02}:00" in known
