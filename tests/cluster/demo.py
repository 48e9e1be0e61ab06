#!/usr/bin/env python3
"""An experiment by Slurm jobs, on a pretend cluster: `make cluster-demo`, as root.

It brings the cluster up, runs Snakemake on its login side as the ordinary user, copies
the results to results/cluster-demo, and takes the cluster down.
"""

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


def main() -> int:
    with tempfile.TemporaryDirectory(prefix=f"{NAME}-") as name:
        work = Path(name)
        work.chmod(0o755)
        home = work / "project"
        home.mkdir()
        copy_project(home).experiment(EXPERIMENT, f"{NAME}.yaml")
        (home / "slurm_profile/site.yaml").write_text(SITE_FILE)
        shutil.chown(home, USER)
        cluster = up(work / "cluster", user=USER, shared=[work, Path(sys.prefix)])
        print(f"a cluster of {len(cluster.hosts)} hosts is up", flush=True)
        try:
            asked = ("--profile", "slurm_profile", "--config")
            snakemake = [sys.executable, "-m", "snakemake", *asked]
            command = cluster.command(
                [*snakemake, f"experiment={NAME}.yaml"], {"PYTHONPATH": f"{home}/src"}
            )
            done = subprocess.run(command, cwd=home, check=False)
            found = home / "results" / NAME
            if found.exists():
                kept = ROOT / "results" / NAME
                shutil.copytree(found, kept, dirs_exist_ok=True)
                print(f"the table, its page and its plots: {kept}")
        finally:
            down(cluster.state)
    return done.returncode


if __name__ == "__main__":
    try:
        sys.exit(main())
    except PretendError as error:
        sys.exit(f"cluster-demo: {error}")
