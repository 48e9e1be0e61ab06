"""Claims: each launch has one owner, and a dead owner is recognised."""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankbench.launch.job.claim import (
    HEARTBEAT,
    SILENT_AFTER,
    Owner,
    claim_next,
    open_claims,
    read_owner,
)

pytestmark = pytest.mark.unit

CLAIMS = 40


def me() -> Owner:
    return Owner.of(os.getpid())


CLAIMANT = """
import sys
from pathlib import Path
from rankbench.launch.job.claim import claim_next
print("ready", flush=True)
input()
print(*(claim_next(Path(sys.argv[1]))[0] for _ in range(int(sys.argv[2]))))
"""


def test_no_number_is_given_twice(tmp_path):
    command = [sys.executable, "-c", CLAIMANT, str(tmp_path), str(CLAIMS)]
    claimants = [
        subprocess.Popen(command, stdin=-1, stdout=-1, text=True) for _ in range(2)
    ]
    for claimant in claimants:
        assert claimant.stdout.readline() == "ready\n"
    for claimant in claimants:
        claimant.stdin.write("\n")
        claimant.stdin.flush()
    given = [claimant.communicate(timeout=400)[0].split() for claimant in claimants]
    assert [len(numbers) for numbers in given] == [CLAIMS, CLAIMS]
    assert {int(n) for n in given[0] + given[1]} == set(range(1, 2 * CLAIMS + 1))
    for claimant, numbers in zip(claimants, given, strict=True):
        assert {read_owner(tmp_path / n).pid for n in numbers} == {claimant.pid}
    # Claims that came second leave no files.
    assert len(os.listdir(tmp_path)) == 2 * CLAIMS


def test_claim_is_complete_when_it_appears(tmp_path):
    number, place = claim_next(tmp_path / "1")
    assert (number, place) == (1, tmp_path / "1" / "1")
    assert (place / "work").is_dir()
    assert read_owner(place) == me()
    assert (
        place.stat().st_mode & 0o777 == (place / "work").stat().st_mode & 0o777 == 0o700
    )
    # Numbers go on after the highest.
    (tmp_path / "1/7").mkdir()
    (tmp_path / "1/7/record.json").write_text("{}")
    assert claim_next(tmp_path / "1")[0] == 8
    assert [n for n, _ in open_claims(tmp_path / "1")] == [1, 8]


def test_failed_claim_leaves_nothing(tmp_path, monkeypatch):
    def fail(_from: Path, _to: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(OSError, match="No space left"):
        claim_next(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["", "{", '{"pid": 1}', '{"more": 1}', "[]"])
def test_damaged_claim_is_named(tmp_path, text):
    (tmp_path / "claim.json").write_text(text)
    with pytest.raises(ValueError, match=f"{tmp_path}/claim.json is damaged"):
        read_owner(tmp_path)


# --- who is alive -------------------------------------------------------------------


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1) as process:
        yield process
        process.kill()


def test_dead_owner(sleeper, tmp_path):
    owner = Owner.of(sleeper.pid)
    assert owner.is_alive(tmp_path)
    sleeper.kill()
    # At first the process is a zombie, as in a container where no parent collects it.
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert not owner.is_alive(tmp_path)
    sleeper.wait()
    assert not owner.is_alive(tmp_path)


def test_another_process_with_the_same_number(tmp_path, monkeypatch):
    mine = me()
    assert mine.started is not None
    assert not dataclasses.replace(mine, started=mine.started - 1).is_alive(tmp_path)
    assert not dataclasses.replace(mine, boot="another").is_alive(tmp_path)
    # The owner survives a change of the clock.
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    assert mine.is_alive(tmp_path)


@pytest.mark.parametrize("beats", [True, False])
@pytest.mark.parametrize(("age", "alive"), [(SILENT_AFTER / 2, True), (1e4, False)])
def test_owner_on_another_host(tmp_path, beats, age, alive):
    _, place = claim_next(tmp_path)
    there = dataclasses.replace(me(), host="not-" + socket.gethostname())
    then = time.time() - age
    if beats:
        # Of all signs of life, only the newest counts.
        (place / HEARTBEAT).write_text("1")
        os.utime(place / HEARTBEAT, (then, then))
        os.utime(place / "claim.json", (0, 0))
    else:
        os.utime(place / "claim.json", (then, then))
    assert there.is_alive(place) is alive
