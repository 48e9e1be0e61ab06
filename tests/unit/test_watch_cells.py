"""Tests of how the progress of a run is observed and described."""

from __future__ import annotations

import io
import os
import signal
import sys
from pathlib import Path

import pytest
from rich.console import Console

from rankbench.commands._display import Plain, describe_event, open_display
from rankbench.commands._execute import own_cache, start_snakemake
from rankbench.commands._watch import Event, Watch, WatchedCell
from rankbench.project.status import State
from rankbench.record import Layout, write_json

pytestmark = pytest.mark.unit

CELL = "ddp.gloo.1x2.lenet.digits"


def begin_launch(layout: Layout, number: int, purpose: str = "") -> Path:
    place = layout.attempt(CELL, 1) / purpose / str(number)
    place.mkdir(parents=True)
    return place


def end_launch(place: Path, *, purpose: str = "measure", status: str = "ok") -> None:
    record = {
        "status": status,
        "reason": None if status == "ok" else "rank 1 was ended by SIGKILL",
        "purpose": purpose,
        "samples": 100,
        "ranks": [{"window_s": 0.5}],
        "gate": {"lossy": False, "loss_error": 1e-16},
        "seconds": {"launch": 2.5},
    }
    write_json(place / "record.json", record)


def see(watch: Watch) -> list[tuple[str, str]]:
    return [(event.kind, event.text) for event in watch.look()]


def test_a_cell_from_its_first_launch_to_its_summary(tmp_path):
    layout = Layout(tmp_path)
    watch = Watch(layout, {CELL: 2})
    assert see(watch) == []
    gate = begin_launch(layout, 1, "gate")
    assert see(watch) == [("begun", "gate")]
    end_launch(gate, purpose="gate")
    first = begin_launch(layout, 1)
    assert see(watch) == [("ended", "gate"), ("begun", "launch 1 of 2")]
    assert see(watch) == []
    end_launch(first)
    second = begin_launch(layout, 2)
    assert see(watch) == [("ended", "launch 1 of 2"), ("begun", "launch 2 of 2")]
    end_launch(second)
    write_json(layout.summary(CELL), {})
    assert see(watch) == [("ended", "launch 2 of 2"), ("done", "")]
    (cell,) = watch.cells
    assert (cell.done, cell.running, cell.launched) == (True, None, 2)
    assert see(watch) == []


def test_what_was_there_before_is_no_news(tmp_path):
    """A rerun: an attempt is complete, and another was killed."""
    layout = Layout(tmp_path)
    end_launch(begin_launch(layout, 1))
    begin_launch(layout, 2)
    write_json(layout.summary(CELL), {})
    layout.log(CELL).parent.mkdir(parents=True)
    layout.log(CELL).write_text("  waiting: another measurement runs\n")
    watch = Watch(layout, {CELL: 1})
    assert see(watch) == []
    with open(layout.log(CELL), "a") as log:
        log.write(f"  launch 2 was left unfinished\n{CELL}  launch 3  1/1 ok\n  cut")
    assert see(watch) == [("said", "launch 2 was left unfinished")]
    end_launch(begin_launch(layout, 3))
    assert see(watch) == [("ended", "launch 1 of 1")]
    write_json(layout.summary(CELL), {"changed": True})
    assert see(watch) == [("done", "")]


def test_launches_that_an_earlier_run_kept_count(tmp_path):
    layout = Layout(tmp_path)
    end_launch(begin_launch(layout, 1))
    watch = Watch(layout, {CELL: 2}, {CELL: 1})
    end_launch(begin_launch(layout, 2))
    assert see(watch) == [("ended", "launch 2 of 2")]
    assert watch.cells[0].launched == 2


def test_a_cell_that_cannot_be_measured_says_why(tmp_path):
    layout = Layout(tmp_path)
    watch = Watch(layout, {CELL: 1})
    layout.log(CELL).parent.mkdir(parents=True)
    layout.log(CELL).write_text(f"{CELL}  not measured: digits.npz is gone\n")
    assert see(watch) == [("said", "digits.npz is gone")]


def make_event(kind: str, status: str = "ok", **values) -> Event:
    record = {
        "status": status,
        "reason": "rank 1 was ended by SIGKILL",
        "purpose": "measure",
        "samples": 100,
        "ranks": [{"window_s": 0.5}],
        "seconds": {"launch": 2.54},
    }
    return Event(kind, WatchedCell(CELL, 6), "launch 3 of 6", record, **values)


@pytest.mark.parametrize(
    ("event", "state", "words"),
    [
        (make_event("ended"), None, "launch 3 of 6  200 samples/s  2.5 s"),
        (
            make_event("ended", "crashed"),
            None,
            "launch 3 of 6  crashed: rank 1 was ended by SIGKILL  2.5 s",
        ),
        (Event("said", WatchedCell(CELL, 6), "waiting"), None, "waiting"),
        (Event("said", WatchedCell(CELL, 6), "\x1b[2Jgone"), None, "?[2Jgone"),
        (
            Event("done", WatchedCell(CELL, 6)),
            State("crashed", "5/6", "it crashed", ""),
            "crashed: it crashed  5/6",
        ),
    ],
)
def test_events_in_words(event, state, words):
    assert describe_event(event, state) == words


class TerminalStream(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_not_a_terminal_gets_plain_lines(monkeypatch):
    # This also holds if colours are forced: a bar would fill a log with control
    # characters.
    monkeypatch.setenv("FORCE_COLOR", "1")
    stream = io.StringIO()
    cells = [WatchedCell(CELL, 6), WatchedCell("other", 6, done=True)]
    display = open_display(Console(file=stream), cells, plain=False)
    assert isinstance(display, Plain)
    display.show(make_event("begun"), None)
    display.show(make_event("ended"), None)
    display.refresh("Building DAG of jobs...")
    display.close()
    assert stream.getvalue() == (f"[1/2] {CELL}  launch 3 of 6  200 samples/s  2.5 s\n")


def test_a_terminal_that_cannot_move_its_cursor_gets_plain_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    console = Console(file=TerminalStream())
    assert type(open_display(console, [], plain=False)) is Plain


@pytest.mark.parametrize("interrupt", [signal.default_int_handler, signal.SIG_IGN])
def test_signals_that_end_a_run_reach_snakemake(interrupt):
    # In the background of a shell, as after `nohup rankbench run &`, SIGINT is ignored.
    before = {
        signal.SIGHUP: signal.signal(signal.SIGHUP, signal.SIG_IGN),
        signal.SIGINT: signal.signal(signal.SIGINT, interrupt),
    }
    try:
        with start_snakemake(["sleep", "60"], sys.stderr) as (child, came):
            os.kill(os.getpid(), signal.SIGHUP)
            assert child.poll() is None
            os.kill(os.getpid(), signal.SIGTERM)
        assert came == [signal.SIGTERM]
        assert child.returncode == -signal.SIGINT
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGINT) is interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_terminal_shows_cells_and_how_much_is_left(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = TerminalStream()
    console = Console(file=stream, force_terminal=True, width=100, color_system=None)
    running = WatchedCell(CELL, 6, running="launch 4 of 6", launched=3)
    many = [WatchedCell(f"cell{i}", 6) for i in range(20)]
    display = open_display(console, [*many, running], plain=False)
    display.show(make_event("ended"), None)
    display.show(make_event("ended", "crashed"), None)
    display.show(Event("done", running), State("ok", "6/6", "", ""))
    display.refresh("")
    display.close()
    said = stream.getvalue()
    assert f"launch 4 of 6   {CELL}" in said
    assert "and 9 more" in said
    assert "crashed: rank 1 was ended by SIGKILL" in said
    assert f"ok          {CELL}" in said
    # 123 launches of 2.5 s.
    assert "about 5 min left" in said


def test_snakemake_gets_a_cache_of_its_own_where_the_home_will_not_do(tmp_path):
    home, file = tmp_path / "home", tmp_path / "file"
    home.mkdir()
    file.touch()
    assert own_cache({"XDG_CACHE_HOME": str(home / "cache")}) == {}
    # Below a file no folder can be made, whoever tries.
    found = own_cache({"XDG_CACHE_HOME": str(file / "cache")})
    assert found == {"XDG_CACHE_HOME": str(Path(".snakemake/cache").absolute())}
