"""What a user does on the login side of the pretend cluster, and sees there."""

from __future__ import annotations

import csv
from collections.abc import Callable

from allocations import Site

Snakemake = Callable[..., str]


def table_of(site: Site, name: str) -> dict[str, dict[str, str]]:
    """Rows of an experiment's table by cell."""
    with open(site.project.root / f"results/{name}/table.csv") as file:
        return {row["cell"]: row for row in csv.DictReader(file)}


def queue(site: Site, *options: str) -> list[str]:
    """Jobs of the user as the documentation shows them."""
    asked = ("squeue", "--me", "--noheader", "--format=%i %T %N %k", *options)
    return site.cluster.run(*asked).splitlines()
