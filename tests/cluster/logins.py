"""What a user does on the login side of the pretend cluster, and sees there."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from allocations import Site

Snakemake = Callable[..., str]


def start(site: Site, *argv: str) -> subprocess.Popen[str]:
    """Start a command of this Python's environment as the user, in the project."""
    variables = {
        "PYTHONPATH": str(site.project.root / "src"),
        "PATH": f"{Path(site.python).parent}:{os.environ['PATH']}",
        "SNAKEMAKE_PROFILE": "slurm_profile",
        # A habit of users that must not hide their running jobs.
        "SQUEUE_STATES": "PD",
    }
    return subprocess.Popen(
        site.cluster.command((site.python, "-m", *argv), variables),
        cwd=site.project.root,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def queue(site: Site, *options: str) -> list[str]:
    """Jobs of the user as the documentation shows them."""
    asked = ("squeue", "--me", "--noheader", "--format=%i %T %N %k", *options)
    return site.cluster.run(*asked).splitlines()


def jobs(site: Site) -> dict[str, str]:
    """Every job that the controller has not forgotten yet: number -> state, comment."""
    return dict(line.split(maxsplit=1) for line in queue(site, "--states=all"))
