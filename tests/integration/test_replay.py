"""A published bundle is measured again on this machine."""

from __future__ import annotations

import csv
import json
import shutil
import sys

import pytest

from conftest import ROOT

pytestmark = pytest.mark.integration


@pytest.mark.long
def test_the_published_example_ends_with_a_verdict_for_each_row(project):
    """Which verdict depends on the machine."""
    shutil.copytree(ROOT / "docs/example", project.root / "example")
    command = ["-m", "rankbench.cli", "replay", "example", "--run", "--json"]
    done = project.run([sys.executable, *command], timeout=1200)
    assert done.returncode in (0, 1, 3), done.stdout
    found = json.loads(done.stdout[done.stdout.rindex("\n{\n") :])
    theirs, ours = (side["cells"] for side in found["sides"])
    with open(ROOT / "docs/example/table.csv") as file:
        ids = [row["cell"] for row in csv.DictReader(file)]
    assert sorted(row["cell"] for row in found["cells"]) == sorted(ids)
    for row in found["cells"]:
        assert row["verdict"] in ("PASS", "FAIL", "UNDECIDED", "no number")
        one = row["cell"]
        assert bool(ours[one]["throughput"]) == bool(theirs[one]["throughput"])
