"""Where ranks are: two rooms that share a few bytes, and no code."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankbench.launch.process import where_ranks_are as supervisor
from rankbench.launch.process.where_ranks_are import STAGES, ProgressFile
from rankbench.rank.lifeline import progress as rank
from rankbench.rank.lifeline.progress import STARTING, THE_END, TRAINING, Progress

pytestmark = pytest.mark.unit


def test_both_sides_agree() -> None:
    assert rank._ENTRY.format == supervisor.ENTRY.format
    assert STAGES[STARTING] == "starting"
    assert STAGES[TRAINING] == "training"
    assert STAGES[THE_END] == STAGES[-1] == "the end"


def test_supervisor_sees_what_ranks_store(tmp_path: Path) -> None:
    seen = ProgressFile(tmp_path / "progress", 2)
    first, second = (Progress(tmp_path / "progress", r) for r in range(2))
    assert seen.read() == [(0, 0), (0, 0)]
    second.enter(TRAINING)
    second.step(7)
    assert seen.read() == [(0, 0), (TRAINING, 7)]
    first.enter(THE_END)
    second.enter(THE_END)
    assert seen.read() == [(THE_END, 0)] * 2


def test_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: now)
    seen = ProgressFile(tmp_path / "progress", 5)
    Progress(tmp_path / "progress", 1).enter(TRAINING)
    Progress(tmp_path / "progress", 2).step(3)
    seen.read()
    now = 142.4
    assert seen.describe() == (
        "rank 0 in starting; rank 1 in training; rank 2 in starting, step 3; "
        "rank 3 in starting; ...; nothing moved for 42 s"
    )
    Progress(tmp_path / "progress", 0).step(1)
    assert seen.describe().endswith("nothing moved for 0 s")
