"""Ranks write where they are, and the supervisor reads it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from rankbench.launch.process.reports import (
    RankProgress,
    are_all_in,
    describe_progress,
    read_progress,
)
from rankbench.launch_spec import STARTING, THE_END, TRAINING
from rankbench.rank.world import lifeline as rank
from rankbench.rank.world.lifeline import Progress

pytestmark = pytest.mark.unit


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "progress"
    folder.mkdir()
    return folder


def at_host(name: str, folder: Path, number: int) -> Progress:
    """The progress of a rank on a host of this name."""
    with pytest.MonkeyPatch.context() as host:
        host.setattr(rank.socket, "gethostname", lambda: name)
        return Progress(folder, number)


def test_the_supervisor_sees_each_stage_of_the_ranks_of_all_hosts(folder):
    seen = partial(read_progress, folder, 3)
    first, second = (at_host("a", folder, number) for number in (0, 1))
    third = at_host("b", folder, 2)
    assert seen() == [RankProgress(STARTING)] * 3
    third.enter(TRAINING)
    assert seen() == [RankProgress(), RankProgress(), RankProgress(TRAINING)]
    first.enter(TRAINING)
    assert not are_all_in("training", seen())
    second.enter(TRAINING)
    assert are_all_in("training", seen())
    assert sorted(file.name for file in folder.iterdir()) == ["a", "b"]
    for each in (first, second, third):
        each.enter(THE_END)
    assert seen() == [RankProgress(THE_END)] * 3


def test_what_rsync_has_not_yet_copied_is_no_progress(folder):
    (folder / ".b.yfjnSE").symlink_to("renamed meanwhile")
    at_host("a", folder, 0).enter(TRAINING)
    assert read_progress(folder, 1) == [RankProgress(TRAINING)]


def test_a_step_is_written_only_if_the_supervisor_asks(folder, monkeypatch):
    now = 100.0
    monkeypatch.setattr(rank.time, "monotonic", lambda: now)
    seen = partial(read_progress, folder, 2)
    first, second = (Progress(folder, number) for number in range(2))
    for each in (first, second):
        each.enter(TRAINING)
        each.step(7)
        each.look(asked=0)
    assert seen() == [RankProgress(TRAINING)] * 2
    assert describe_progress(seen()) == "rank 0 in training; rank 1 in training"
    now = 130.0
    first.step(8)
    first.look(asked=0)
    now = 142.4
    first.look(asked=31)
    assert not all(place.asked >= 31 for place in seen())
    assert describe_progress(seen()) == (
        "rank 0 in training, step 8; rank 1 in training; nothing moved for 12 s; "
        "1 did not answer"
    )
    second.look(asked=32)
    assert all(place.asked >= 31 for place in seen())
    assert describe_progress(seen()) == (
        "rank 0 in training, step 8; rank 1 in training, step 7; nothing moved for 12 s"
    )


def test_of_many_ranks_four_are_described(folder):
    seen = partial(read_progress, folder, 5)
    Progress(folder, 1).enter(TRAINING)
    assert describe_progress(seen()) == (
        "rank 0 in starting; rank 1 in training; rank 2 in starting; "
        "rank 3 in starting; ..."
    )
