"""Cells of config.yaml and every study: ids, hashes, obstacles and marks, as text.

`python tests/unit/test_plans.py > tests/unit/plans.txt` writes it anew.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# The folder of the tests is not on the path if this file is run by hand.
sys.path.insert(0, str(Path(__file__).parents[1]))

from factories import make_site
from rankbench.matrix.catalog import load_catalog
from rankbench.matrix.experiment import load_experiment
from rankbench.matrix.plan import make_plan

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).with_name("plans.txt")
SITES = {"one host": make_site(), "four hosts": make_site(nodes=4, cores=8)}


def describe_plans() -> Iterator[str]:
    catalog = load_catalog()
    for file in [ROOT / "config.yaml", *sorted(ROOT.glob("studies/*.yaml"))]:
        experiment = load_experiment(file, catalog, cuda=False)
        for name, site in SITES.items():
            yield f"{file.name} on {name}"
            plan = make_plan(
                experiment, site, catalog, code=lambda _: "c0de", source=file.name
            )
            for cell in plan.cells.values():
                said = cell.infeasible or ", ".join(cell.marks)
                yield f"  {cell.id} {cell.hash[:16]} {said}".rstrip()


def test_every_plan_is_the_known_one():
    """A changed hash makes every earlier record of the cell stale."""
    assert list(describe_plans()) == GOLDEN.read_text().splitlines()


if __name__ == "__main__":
    print(*describe_plans(), sep="\n")
