#!/usr/bin/env python3
"""An experiment by Slurm jobs, on a pretend cluster: `make cluster-demo`, as root."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))  # A program finds only modules of its own folder.

from pretend_down import down  # noqa: E402
from pretend_host import PretendError  # noqa: E402
from pretend_up import up  # noqa: E402
from site_files import SITE_FILE  # noqa: E402

from conftest import ROOT, copy_project  # noqa: E402

USER = "rankbench"
NAME = "cluster-demo"
EXPERIMENT = f"""
name: {NAME}
description: what does a second host bring?
strategy: [single, ddp]
topology: [1x1, 2x1]
model: lenet
data: synthetic
batch_size: 32
steps: 20
launches: 2
repeat_disturbed: false
time_limit: 120
"""


def run(name: str, experiment: str, *, hosts: int = 4, rate: str | None = None) -> int:
    """Run an experiment on a cluster, and copy its results to results/NAME.

    Snakemake runs on the login side as the ordinary user.

    Args:
        experiment: text of its file.
        rate: of the hosts' links, as tc writes it; None does not limit them.

    Returns:
        Snakemake's exit status.

    Raises:
        PretendError: there is no cluster here, and why.
    """
    with tempfile.TemporaryDirectory(prefix=f"{name}-") as folder:
        work = Path(folder)
        work.chmod(0o755)
        home = work / "project"
        home.mkdir()
        copy_project(home).experiment(experiment, f"{name}.yaml")
        (home / "slurm_profile/site.yaml").write_text(SITE_FILE)
        shutil.chown(home, USER)
        shared = [work, Path(sys.prefix)]
        cluster = up(work / "cluster", hosts=hosts, user=USER, shared=shared)
        print(f"a cluster of {len(cluster.hosts)} hosts is up", flush=True)
        try:
            for host in cluster.hosts.values() if rate else ():
                host.slow(rate)
            asked = ("--profile", "slurm_profile", "--config")
            snakemake = [sys.executable, "-m", "snakemake", *asked]
            command = cluster.command(
                [*snakemake, f"experiment={name}.yaml"], {"PYTHONPATH": f"{home}/src"}
            )
            done = subprocess.run(command, cwd=home, check=False)
            told = [sys.executable, "-m", "rankbench.cli", "answer", f"results/{name}"]
            variables = {"PYTHONPATH": f"{home}/src"}
            subprocess.run(cluster.command(told, variables), cwd=home, check=False)
            found = home / "results" / name
            if found.exists():
                kept = ROOT / "results" / name
                shutil.copytree(found, kept, dirs_exist_ok=True)
                print(f"the table, its page and its plots: {kept}")
        finally:
            down(cluster.state)
    return done.returncode


if __name__ == "__main__":
    try:
        sys.exit(run(NAME, EXPERIMENT))
    except PretendError as error:
        sys.exit(f"cluster-demo: {error}")
