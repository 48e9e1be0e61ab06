"""The campaign for a machine with a GPU goes its whole way on CPUs."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.equipment]

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("run", ["check", "speed", "truth"])
def test_a_dry_run_leaves_a_summary_and_records(run, tmp_path):
    done = subprocess.run(
        [
            *(sys.executable, "tests/gpu/campaign.py", run),
            *("--dry-run", "--out", str(tmp_path)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["failed"] == []
    assert summary["dry_run"]
    if run == "speed":
        assert summary["harness"].keys() == {"single", "ddp"}
        assert {name.split(".")[0] for name in summary["cells"]} > {"fsdp", "zero1"}
        assert set(summary["cells"].values()) == {"ok"}
    if run == "truth":
        rows = summary["rows"]
        assert {"backward", "update"} <= rows["single.none.1x1" + NAME][
            "profile_ms"
        ].keys()
    if run != "check":
        with tarfile.open(tmp_path / "records.tar.gz") as archive:
            names = archive.getnames()
        assert any(name.endswith("record.json") for name in names)


NAME = ".convnet.synthetic.image_size=32.channels=3.batch_size=4.oversubscribe=true"
