"""Files are written completely or not at all; the verdict on some records."""

from __future__ import annotations

import os
import threading

import pytest

from factories import make_record
from rankbench.record import (
    FAILURES,
    Layout,
    Verdict,
    counting,
    first_line,
    judge,
    numbered,
    read_attempt,
    read_json,
    still_wanted,
    write_atomically,
    write_if_changed,
    write_json,
)

pytestmark = pytest.mark.unit

OK, CRASHED = make_record(), make_record("crashed")
PORT = make_record("cancelled", "host", reason="the port was taken")
USER = make_record("cancelled", "user", reason="interrupted by SIGINT")
SITE = make_record("cancelled", "site")


# --- files --------------------------------------------------------------------------


def test_reader_never_sees_half_a_file(tmp_path):
    path = tmp_path / "value.json"
    contents = [bytes([65 + i]) * (200_000 + i) for i in range(2)]
    write_atomically(path, contents[0])
    done = threading.Event()

    def write() -> None:
        for i in range(60):
            write_atomically(path, contents[i % 2])
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    reads = 0
    while not done.is_set():
        assert path.read_bytes() in contents
        reads += 1
    thread.join()
    assert reads > 10


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "value.json"
    write_json(path, {"a": 1})

    def fail(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        write_json(path, {"a": 2})
    assert read_json(path) == {"a": 1}
    assert os.listdir(tmp_path) == ["value.json"]


def test_where_nothing_can_be_removed_the_error_names_the_file(tmp_path, monkeypatch):
    def fail(*_args: object, **_options: object) -> None:
        raise OSError(30, "Read-only file system", "another")

    monkeypatch.setattr(os, "fsync", fail)
    monkeypatch.setattr("pathlib.Path.unlink", fail)
    with pytest.raises(OSError, match=r"Read-only file system: '.*value.json'"):
        write_json(tmp_path / "value.json", {})


def test_data_is_synced_before_the_file_appears(tmp_path, monkeypatch):
    calls = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda h: (calls.append("sync"), fsync(h)))
    monkeypatch.setattr(
        os, "replace", lambda a, b: (calls.append("rename"), replace(a, b))
    )
    write_atomically(tmp_path / "a" / "b" / "value", b"1")
    assert calls == ["sync", "rename", "sync"]
    calls.clear()
    write_atomically(tmp_path / "value", b"1", durable=False)
    assert calls == ["rename"]


def test_not_a_number_is_not_written(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "value.json", {"loss": float("nan")})
    assert not list(tmp_path.iterdir())


def test_unchanged_file_keeps_its_time(tmp_path):
    path = tmp_path / "plan.json"
    assert write_if_changed(path, b"one")
    os.utime(path, (1000, 1000))
    assert not write_if_changed(path, b"one")
    assert path.stat().st_mtime == 1000
    assert write_if_changed(path, b"two")
    assert path.read_bytes() == b"two"
    assert path.stat().st_mtime > 1000


@pytest.mark.parametrize("data", [b"", b'{"a": 1', b"\xff\xfe", b"[]", b"null"])
def test_damaged_file_is_named(tmp_path, data):
    path = tmp_path / "record.json"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=rf"{path} is damaged: \w"):
        read_json(path)


def test_numbered_ignores_other_names(tmp_path):
    for name in ("10", "2", "01", "0", ".claim-x", "3.old", "-1"):
        (tmp_path / name).mkdir()
    assert numbered(tmp_path) == [2, 10]
    assert numbered(tmp_path / "missing") == []


def test_layout_is_the_documented_one(tmp_path):
    layout = Layout(tmp_path)
    paths = [
        layout.plan,
        layout.request("c"),
        layout.summary("c", 1),
        layout.launch("c", 2, 3),
        layout.table("csv"),
        layout.plot("scaling", "svg"),
    ]
    assert [str(p.relative_to(tmp_path)) for p in paths] == [
        "plan.json",
        "requests/c.json",
        "records/c/1/summary.json",
        "records/c/2/3",
        "table.csv",
        "plots/scaling.svg",
    ]
    assert layout.attempts("c") == []
    layout.launch("c", 2, 3).mkdir(parents=True)
    assert layout.attempts("c") == [2]


def test_attempt_is_read_in_the_order_of_launches(tmp_path):
    for launch in (10, 9, 1):
        write_json(tmp_path / str(launch) / "record.json", make_record(launch=launch))
    (tmp_path / "11").mkdir()  # A launch that was claimed but has no record.
    assert [r["launch"] for r in read_attempt(tmp_path)] == [1, 9, 10]


@pytest.mark.parametrize("version", [0, 2, None])
def test_record_of_another_version_is_refused(tmp_path, version):
    write_json(tmp_path / "1" / "record.json", make_record(schema=version))
    with pytest.raises(ValueError, match=rf"1/record.json has record schema {version}"):
        read_attempt(tmp_path)


# --- verdicts -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("records", "left"),
    [
        ([], []),
        ([OK, CRASHED], [OK, CRASHED]),
        ([PORT, PORT, PORT, OK], [OK]),
        ([USER, USER, USER, OK], [OK]),
    ],
)
def test_counting(records, left):
    copies = [dict(r) for r in records]
    assert counting(copies) == left


@pytest.mark.parametrize(
    ("records", "wanted", "status", "ok", "complete"),
    [
        ([], 2, "not-run", 0, False),
        ([OK], 2, "not-run", 1, False),
        ([OK, OK], 2, "ok", 2, True),
        ([OK, OK, OK], 2, "ok", 3, True),
        # With one failure among successes, the attempt goes on and is not ok.
        ([OK, CRASHED], 3, "crashed", 1, False),
        ([OK, CRASHED, OK], 3, "crashed", 2, True),
        ([CRASHED], 6, "crashed", 0, False),
        ([CRASHED], 1, "crashed", 0, True),
        # Two failures end an attempt that has no success yet.
        ([CRASHED, CRASHED], 6, "crashed", 0, True),
        ([OK, CRASHED, CRASHED], 6, "crashed", 1, False),
        # What is not the cell's fault never counts.
        ([PORT], 1, "cancelled", 0, False),
        ([PORT, OK], 1, "ok", 1, True),
        ([PORT, CRASHED], 6, "crashed", 0, False),
        ([PORT, PORT, PORT, PORT], 6, "cancelled", 0, False),
        ([USER, USER, USER], 1, "cancelled", 0, False),
        ([OK, USER], 2, "cancelled", 1, False),
        ([OK, USER, OK], 2, "ok", 2, True),
        ([USER, OK], 2, "not-run", 1, False),
        ([SITE, SITE, SITE], 1, "cancelled", 0, False),
    ],
)
def test_judge(records, wanted, status, ok, complete):
    verdict = judge([dict(r) for r in records], wanted)
    assert (verdict.status, verdict.ok, verdict.wanted) == (status, ok, wanted)
    assert verdict.complete is complete
    assert (verdict.reason is None) == (status == "ok")


@pytest.mark.parametrize("better", range(1, len(FAILURES)))
def test_the_worst_status_counts(better):
    worse = FAILURES[better - 1]
    records = [make_record(), make_record(FAILURES[better]), make_record(worse)]
    assert judge(records, 3) == Verdict(worse, f"it {worse}", 1, 3, True)


def test_reasons_are_those_of_the_records():
    again = "repeated by the next run"
    of_user = f"interrupted by SIGINT; ended by the user: {again}"
    assert judge([OK, USER], 2).reason == of_user
    said = judge([PORT], 2).reason
    assert said.startswith("the port was taken; the site's fault: repeated at once")
    assert judge([OK], 6).reason == ("1 of 6 launches are done")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", ""),
        ("  \n\n", ""),
        ("\n  one \ntwo", "one"),
        ("x" * 300, "x" * 300),
        ("x" * 301, "x" * 297 + "..."),
    ],
)
def test_first_line(text, line):
    assert first_line(text) == line


@pytest.mark.parametrize(
    ("asked", "planned", "done", "wanted"),
    [(8, 8, 5, 8), (8, 3, 5, 5), (8, 3, 2, 3), (20, 8, 12, 12), (6, 12, 6, 6)],
)
def test_fewer_launches_may_do_than_were_asked_for(asked, planned, done, wanted):
    assert still_wanted(asked, planned, [OK] * done) == wanted
