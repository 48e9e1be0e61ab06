"""What a user does on the login side of the pretend cluster, and sees there."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

from allocations import Site
from pretend_host import INTERFACE

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

Snakemake = Callable[..., str]


def with_images(folder: Path) -> str:
    """A site file by which cells run in the images of a folder that the hosts see."""
    inside = f"software: container\nimage_dir: {folder}"
    return SITE_FILE.replace("software: native", inside)


def table_of(site: Site, name: str) -> dict[str, dict[str, str]]:
    """Rows of an experiment's table by cell."""
    with open(site.project.root / f"results/{name}/table.csv") as file:
        return {row["cell"]: row for row in csv.DictReader(file)}


def queue(site: Site, *options: str) -> list[str]:
    """Jobs of the user as the documentation shows them."""
    asked = ("squeue", "--me", "--noheader", "--format=%i %T %N %k", *options)
    return site.cluster.run(*asked).splitlines()
