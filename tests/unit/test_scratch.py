"""The temporary folder of a launch."""

from __future__ import annotations

import errno
import os
import socket
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from factories import make_spec
from rankbench.launch.hosts.base import ThisMachine
from rankbench.launch.process import scratch
from rankbench.launch.process.scratch import (
    main,
    private_scratch,
    scratch_of,
)

pytestmark = pytest.mark.unit


def folder_of(site: Path, job: str | None = None) -> Path:
    folder = scratch_of(str(site), job)
    assert folder is not None
    return folder


def with_scratch(folder: Path | None) -> AbstractContextManager[str | None]:
    return private_scratch(make_spec(scratch=folder), ThisMachine())


def test_it_is_private_and_goes_with_the_launch(tmp_path):
    folder = folder_of(tmp_path)
    with with_scratch(folder):
        assert folder.stat().st_mode & 0o777 == 0o700
        assert not list(folder.iterdir())
        (folder / "left").mkdir()
    with with_scratch(None):
        assert not list(tmp_path.iterdir())
    # No two launches have the same.
    assert len({folder_of(tmp_path, job) for job in (None, "7", None, "7")}) == 4
    assert scratch_of(None, "7") is None


def test_a_folder_that_is_not_there(tmp_path):
    site = tmp_path / "nowhere"
    said = (
        f"scratch of the host {socket.gethostname()}: {site}: No such file or directory"
    )
    with with_scratch(folder_of(site)) as fault:
        assert f"{said}: make room there, or correct scratch" in str(fault)


def test_a_full_disk(tmp_path, monkeypatch, capsys):
    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    assert main(folder_of(tmp_path)) == 1
    assert "No space left on device: make room there" in capsys.readouterr().out


def test_what_the_dead_have_left_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(scratch, "has_ended", lambda job: job == "7")
    dead, living = folder_of(tmp_path, "7"), folder_of(tmp_path, "8")
    by_hand, foreign = folder_of(tmp_path), tmp_path / "rankbench.other.7.1"
    for folder in (dead, living, by_hand, foreign):
        folder.mkdir()
    mine = folder_of(tmp_path, "9")
    assert main(mine) == 0
    # A folder without a job may belong to a running launch.
    assert set(tmp_path.iterdir()) == {living, by_hand, foreign, mine}
    assert main(folder_of(tmp_path)) == 0
    assert not by_hand.exists()
