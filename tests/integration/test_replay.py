"""A published bundle is measured again on this machine."""

from __future__ import annotations

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
    rows = json.loads(done.stdout[done.stdout.rindex("\n{\n") :])["cells"]
    assert (
        len(rows) == len((ROOT / "docs/example/table.csv").read_text().splitlines()) - 1
    )
    for row in rows:
        assert row["verdict"] in ("PASS", "FAIL", "UNDECIDED", "no number")
        assert bool(row["new"]["throughput"]) == bool(row["old"]["throughput"])
