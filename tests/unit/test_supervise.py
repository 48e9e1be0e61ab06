"""When the supervisor ends what has not ended by itself."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from factories import make_shape
from rankbench.launch import supervise
from rankbench.launch.progress import ProgressFile
from rankbench.launch.signs import Heartbeat, Stop

pytestmark = pytest.mark.unit


def wait_for(child: subprocess.Popen[bytes], directory: Path) -> str | None:
    task: Any = SimpleNamespace(
        directory=directory, shape=make_shape(2), time_limit=0.5
    )
    progress = ProgressFile(directory / "work" / "progress", 2)
    with Heartbeat(directory / "work" / "heartbeat") as heartbeat:
        return supervise._wait(child, task, Stop(), heartbeat, progress, None)


@pytest.mark.parametrize(
    ("report", "reason"),
    [({"error": {"message": "no luck"}}, "failure"), ({"rank": {}}, "timeout")],
)
def test_those_that_wait_for_a_rank_that_failed_do_not_wait_for_long(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    report: dict[str, Any],
    reason: str,
) -> None:
    monkeypatch.setattr(supervise, "HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr(supervise, "FAILURE_GRACE", 0.1)
    work = tmp_path / "work"
    work.mkdir()
    (work / "rank1.json").write_text(json.dumps(report))
    with subprocess.Popen(["sleep", "60"]) as launcher:
        try:
            assert wait_for(launcher, tmp_path) == reason
        finally:
            launcher.kill()
