"""Tests of when the supervisor ends processes that do not end by themselves."""

from __future__ import annotations

import json
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from factories import make_shape, make_spec
from rankbench.launch.process import reports, supervise
from rankbench.launch.processes import Heartbeat, Stop

pytestmark = pytest.mark.unit


def wait_for(
    child: subprocess.Popen[bytes], directory: Path, time_limit: float
) -> str | None:
    spec = make_spec(directory=directory, shape=make_shape(2), heartbeat_grace=0)
    spec.progress.mkdir()
    with closing(Heartbeat(spec.heartbeat)) as heartbeat:
        return supervise.await_launcher(
            child, spec, Stop(), heartbeat, None, time_limit=time_limit
        )


def test_each_report_is_read_once(tmp_path, monkeypatch):
    read: list[str] = []

    def read_json(path: Path) -> Any:
        read.append(path.name)
        return json.loads(path.read_text())

    monkeypatch.setattr(reports, "read_json", read_json)
    known: dict[int, dict[str, Any]] = {}

    def look() -> set[int]:
        known.update(reports.read_reports(tmp_path, 3, known))
        return known.keys()

    assert not look()
    (tmp_path / "rank0.json").write_text('{"rank": {}}')
    (tmp_path / ".rank1.json.7").write_text('{"err')
    (tmp_path / "rank2.json").write_text('{"err')
    assert [look(), look(), look()] == [{0}] * 3
    # A report that is incomplete is read again at the next look.
    assert (read.count("rank0.json"), read.count("rank2.json")) == (1, 3)
    (tmp_path / "rank2.json").write_text('{"error": {}}')
    (tmp_path / "rank1.json").write_text('{"rank": {}}')
    assert [look(), look()] == [{0, 1, 2}] * 2
    assert read.count("rank1.json") == 1


DONE, FAILED = {"rank": {}}, {"error": {"message": "no luck"}}


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        # Ranks that have reported do not keep the others waiting, and those that wait
        # for a rank that failed do not wait for long.
        ({0: DONE, 1: DONE}, "leaving"),
        ({1: FAILED}, "failure"),
        ({1: DONE}, "timeout"),
    ],
)
def test_why_a_launcher_is_ended(tmp_path, monkeypatch, told, reason):
    monkeypatch.setattr(supervise, "HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr(supervise, "FAILURE_GRACE", 0.1)
    monkeypatch.setattr(supervise, "LEAVING_GRACE", 0.1)
    (tmp_path / "work").mkdir()
    for rank, report in told.items():
        (tmp_path / f"work/rank{rank}.json").write_text(json.dumps(report))
    limit = 0.5 if reason == "timeout" else 400.0
    with subprocess.Popen(["sleep", "600"]) as launcher:
        try:
            assert wait_for(launcher, tmp_path, limit) == reason
        finally:
            launcher.kill()
