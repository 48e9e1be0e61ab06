"""Other programs on this machine are named before a run measures."""

from __future__ import annotations

import os
import pwd
import time
from pathlib import Path

import pytest

from rankbench.commands import _quiet

pytestmark = pytest.mark.unit

ME = pwd.getpwuid(os.getuid()).pw_name


def write_proc(proc: Path, *, busy: int, steal: int = 0, **programs: int) -> None:
    """Counters of the kernel: ticks of the first core, and of some programs."""
    core = min(os.sched_getaffinity(0))
    (proc / "stat").write_text(f"cpu{core} {busy} 0 0 900 0 0 0 {steal} 0 0\n")
    own = {str(os.getpid()): ("me", 7)}
    of_all = {**own, **{f"9{n}": one for n, one in enumerate(programs.items())}}
    for number, (name, ticks) in of_all.items():
        (proc / number).mkdir(exist_ok=True)
        fields = " ".join(["S", *["0"] * 10, str(ticks), "0", *["0"] * 10])
        (proc / number / "stat").write_text(f"{number} ({name}) {fields}\n")


@pytest.mark.parametrize(
    ("after", "found"),
    [
        ({"busy": 50, "make": 40}, {f"make of {ME}": 0.8, "others": 0.2}),
        ({"busy": 2, "make": 2}, {}),
        ({"busy": 1, "steal": 20}, {"other virtual machines": 0.4}),
    ],
)
def test_programs_and_their_cores(tmp_path, monkeypatch, after, found):
    write_proc(tmp_path, busy=0, make=0)
    monkeypatch.setattr(time, "sleep", lambda _: write_proc(tmp_path, **after))
    monkeypatch.setattr(os, "sysconf", lambda _: 100)
    assert _quiet.find_others(0.5, tmp_path) == pytest.approx(found)


@pytest.mark.parametrize(
    ("limit", "looks", "said"),
    [
        (0, [True], "others use 1.2 of 1 cores: make of a 1.2\n  goes on all the same"),
        (60, [True, True, False], "1.2\n  waits for them, at most 60 s\n"),
        (60, [False], ""),
    ],
)
def test_a_run_waits_if_it_is_told_to(monkeypatch, capsys, limit, looks, said):
    seen = iter({"make of a": 1.2} if look else {} for look in looks)
    monkeypatch.setattr(_quiet, "find_others", lambda: next(seen))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    monkeypatch.setattr(time, "sleep", lambda _: None)
    _quiet.wait_until_quiet(limit)
    shown = capsys.readouterr().err
    assert said in shown
    assert bool(said) == bool(shown)
    assert not list(seen)
