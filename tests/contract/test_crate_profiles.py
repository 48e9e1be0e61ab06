"""The crate of the published example passes the validator of its profile."""

from __future__ import annotations

import json
import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.contract, pytest.mark.equipment]

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / "build/validator/bin/python"

# This rule wants an absolute URI even of a workflow that is a file of the crate, which
# Workflow RO-Crate requires; and rankbench has no web address.
CONTRADICTION = "process-run-crate-0.5_5.1"


@pytest.fixture(scope="module")
def said() -> dict[str, Any]:
    """What the validator and the queries say of docs/example."""
    if not PYTHON.exists():
        pytest.skip("no validator: bash tests/machine/install_validator.sh")
    command = [str(PYTHON), "tests/validate_crate.py", "docs/example"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_required_and_recommended_rules_are_kept(said):
    others = [one for one in said["issues"] if one[1] != CONTRADICTION]
    assert others == []
    assert {one[0] for one in said["issues"]} <= {"RECOMMENDED"}


def test_the_example_queries_return_environment_and_duration(said):
    answers = said["answers"]
    launches = [*ROOT.glob("docs/example/records/*/*/**/record.json")]
    assert len(answers["tool_duration"]) == len(launches)
    ((start, end),) = answers["workflow_duration"]
    duration = datetime.fromisoformat(end) - datetime.fromisoformat(start)
    assert 0 < duration.total_seconds() < 600
    files = {
        environment.rpartition("/")[2]
        for _, environment in answers["workflow_environment"]
    }
    assert {"about.json", "gloo.def"} <= files
    assert ["OMP_NUM_THREADS", "1"] in [row[1:] for row in answers["variables"]]
