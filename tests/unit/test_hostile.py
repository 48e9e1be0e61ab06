"""Malicious plans and records, as a user may receive them."""

from __future__ import annotations

import copy
import csv
import io
import json
import pickle
import random
import struct
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pages import Words
from rankbench.cli import main
from rankbench.launch.job.requests import Request
from rankbench.record import Layout, write_json
from rankbench.results.bundle import verify_bundle, write_bundle
from rankbench.results.elements import panels
from rankbench.results.numbers.result_set import read
from rankbench.results.read.launches import read_launch
from rankbench.results.render.files import write_results
from unit.synthetic import (
    change_steps,
    edited,
    make_cell,
    plan_cell,
    write_launches,
    write_plan,
    write_profile,
)

pytestmark = pytest.mark.unit

FORMULA = '=HYPERLINK("https://evil.example","well")'
SCRIPT = "<script>alert(1)</script><img src=x onerror=alert(1)>"
TERMINAL = "\x1b]0;owned\x07\x1b[2J"
PLANNED = plan_cell(make_cell("ddp", "1x2"))


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = write_plan(tmp_path / "results", [PLANNED], launches=1)
    write_launches(layout, PLANNED, count=1, wanted=1)
    return layout


def record_of(layout: Layout) -> Path:
    return layout.launch(PLANNED["id"], 1, 1) / "record.json"


def edit_record(layout: Layout, **changes: Any) -> None:
    path = record_of(layout)
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_plan(layout: Layout, **changes: Any) -> None:
    with edited(layout.plan) as plan:
        plan["cells"][0] |= changes


def refused(layout: Layout, capsys: pytest.CaptureFixture[str]) -> str:
    """The error message of `rankbench table`."""
    assert main(["table", str(layout.root)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert line.isprintable()
    assert line.startswith(f"rankbench: {layout.root}/")
    return line


def stale(layout: Layout) -> str:
    """Why the row has no numbers; a bundle is not made of such a file."""
    (row,) = read(layout).results.rows
    assert row.status == "stale"
    assert row.reason
    assert row.reason.isprintable()
    with pytest.raises(ValueError, match=f"^{layout.root}/records/"):
        read(layout, strict=True)
    return row.reason


# --- what is refused ----------------------------------------------------------------


def test_status_and_show_trust_no_foreign_results(layout, capsys):
    root = str(layout.root)
    changes = {"status": "crashed", "reason": TERMINAL, "job_id": TERMINAL}
    edit_record(layout, **changes)
    asked = Request(attempt=1, launches=1, cell_hash=PLANNED["hash"])
    write_json(layout.request(PLANNED["id"]), asdict(asked))
    for command in (["status", root], ["status", root, PLANNED["id"]]):
        main(command)
        said = capsys.readouterr().out
        assert "?]0;owned??[2J" in said
        assert all(line.isprintable() for line in said.splitlines())
    with edited(layout.plan) as plan:
        del plan["experiment"]["override"]
    assert main(["status", root]) == 2
    assert "experiment must contain ['override']" in capsys.readouterr().err
    plan["experiment"]["override"] = None
    plan["cells"][0]["id"] = "../x"
    layout.plan.write_text(json.dumps(plan))
    assert main(["status", root]) == 2
    assert "is damaged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("record.json", {"status": "well"}),
        ("record.json", {"started": None}),
        ("record.json", {"launch": None}),
        ("record.json", {"image": {}}),
        ("record.json", {"hosts": [{}]}),
        ("request", {"launches": []}),
        ("request", {"attempt": "../../elsewhere"}),
        ("request", {"unknown": 1}),
        ("summary", {"enough": [None]}),
        ("summary", {"enough": "some"}),
    ],
)
def test_status_and_show_refuse_damaged_foreign_results(layout, capsys, name, changes):
    cell = PLANNED["id"]
    asked = Request(attempt=1, launches=1, cell_hash=PLANNED["hash"])
    write_json(layout.request(cell), asdict(asked))
    found = {"status": "ok", "enough": 1}
    write_json(layout.summary(cell, 1), found)
    paths = {"request": layout.request(cell), "summary": layout.summary(cell, 1)}
    path = paths.get(name, record_of(layout))
    status, show = ["status", str(layout.root)], ["status", str(layout.root), cell]
    for command in (status, show):
        assert main(command) == 0
    value = json.loads(path.read_text())
    for key, new in changes.items():
        # No member at all: older or other programs do not have it.
        value |= {key: new}
        if new is None:
            del value[key]
    path.write_text(json.dumps(value))
    capsys.readouterr()
    # Other rows are shown, so the command goes on; a record of its own ends `show`.
    assert main(status) == 0
    said = capsys.readouterr().out
    assert said.startswith("stale ")
    assert f"{cell}  {path.relative_to(layout.root)} is damaged" in said
    of_record = name == "record.json"
    assert main(show) == (2 if of_record else 0)
    shown = capsys.readouterr()
    assert f"{path.relative_to(layout.root)} is damaged" in shown.out + shown.err


def test_damaged_and_foreign_records_are_refused(layout):
    path = record_of(layout)
    good = path.read_bytes()
    deep = b"[" * 100_000
    contents = {
        b"": "is damaged",
        good[: len(good) // 2]: "is damaged",
        b"\x89PNG\r\n\x1a\n": "is damaged",
        b"[1, 2]": "not a JSON object",
        b'{"name": "somebody else\'s"}': "record schema None",
        good.replace(b'"schema": 1', b'"schema": 0'): "record schema 0",
        good.replace(b'"schema": 1', b'"schema": "\\u001b[2J"'): "record schema '",
        good.replace(b'"samples": 1024', b'"samples": NaN'): "NaN is not valid in JSON",
        good.replace(b'"samples": 1024', b'"samples": -Infinity'): "-Infinity is no",
        good.replace(
            b'"samples": 1024', b'"samples": 1e999'
        ): "samples must be integer",
        good.replace(b'"samples": 1024', b'"samples": 1' + b"0" * 300): "samples must",
        good.replace(b'"samples": 1024', b'"samples": 1' + b"0" * 9000): "is damaged",
        good.replace(b'"samples": 1024', b'"samples": true'): "samples must be integer",
        good.replace(b'"spawn"', b'"\\ud800"'): "is damaged",
        good.replace(b'"status": "ok"', b'"status": "fine"'): "'fine'",
        good.replace(b'"ranks": [', b'"rankz": ['): "it lacks ranks",
        good.replace(b'"ranks": 2', b'"rankz": 2'): "'ranks'",
        good.replace(b'"window_s"', b'"window"'): "window_s",
        good.replace(b'"hosts": [{', b'"hosts": [1, {'): "hosts",
        good.replace(b'"torch"', b'"torhc"'): "software",
        deep: "is damaged",
    }
    for content, expected in contents.items():
        path.write_bytes(content)
        said = stale(layout)
        assert said.startswith(f"{path.relative_to(layout.root)} ")
        assert expected in said, said


@pytest.mark.parametrize(
    "name",
    [
        "../../../etc",
        "/etc/cron.d/x",
        "..",
        ".hidden",
        "-rf",
        "a\\b",
        "a\nb",
        "",
        "x" * 300,
    ],
)
def test_a_name_that_leads_elsewhere_is_refused(layout, name, capsys):
    edit_plan(layout, id=name)
    assert "plan.json is damaged: cells[0].id" in refused(layout, capsys)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("strategy", SCRIPT),
        ("model", FORMULA),
        ("topology", "1x" + "9" * 50),
        ("batch_size", 10**400),
        ("options", []),
        ("num_workers", -1),
    ],
)
def test_a_cell_that_no_experiment_has_is_refused(layout, field, value, capsys):
    edit_plan(layout, cell=PLANNED["cell"] | {field: value})
    assert f"cells[0].cell.{field} must" in refused(layout, capsys)


def test_a_cell_that_stands_twice_is_refused(layout, capsys):
    with edited(layout.plan) as plan:
        plan["cells"] *= 2
    assert "a cell stands in it twice" in refused(layout, capsys)


# --- steps.npz ----------------------------------------------------------------------


CODE = b"__import__('pathlib').Path('unpickled').touch()"


class Bomb:
    """Creates a file when it is unpickled, so that a test can see it."""

    def __reduce__(self) -> Any:
        return (Path.touch, (Path("unpickled"),))


def npy(array: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, **options)
    return file.getvalue()


def npy_header(shape: tuple[int, ...], kind: str = "<f8") -> bytes:
    """A header that claims more than follows."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": kind, "fortran_order": False, "shape": shape}
    )
    return file.getvalue()


def write_steps(layout: Layout, member: bytes, kind: int = zipfile.ZIP_STORED) -> None:
    path = record_of(layout).with_name("steps.npz")
    with np.load(path) as members:
        arrays = {name: members[name] for name in members}
    with zipfile.ZipFile(path, "w", kind) as file:
        for name, array in arrays.items():
            hostile = name == "rank0/seconds"
            file.writestr(f"{name}.npy", member if hostile else npy(array))


@pytest.mark.parametrize(
    ("member", "said"),
    [
        (
            npy(np.array([Bomb()], dtype=object), allow_pickle=True),
            "has object of shape",
        ),
        (pickle.dumps(Bomb()), "magic string is not correct"),
        (npy(np.zeros((8, 5))), "not floats of shape (8, 6)"),
        (npy(np.zeros((8, 6), dtype=int)), "not floats of shape (8, 6)"),
        (npy(np.full((8, 6), np.nan)), "seconds that are no times"),
        (npy(np.full((8, 6), -1.0)), "seconds that are no times"),
        (npy(np.full((8, 6), 1e300)), "seconds that are no times"),
        (npy_header((8, 6)), "is damaged"),
        (npy_header((2**40, 6)), "not floats of shape (8, 6)"),
        (
            b"\x93NUMPY\x01\x00" + struct.pack("<H", 60) + b"x",
            "is",
        ),
    ],
)
def test_steps_that_are_no_times_are_refused(
    layout, member, said, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    write_steps(layout, member)
    assert said in stale(layout)
    assert not Path("unpickled").exists()


def test_a_flipped_bit_in_the_header_of_an_array_names_the_file(layout):
    """With a wrong checksum, as after a fault of a disk, and with a correct one."""
    launch = read_launch(record_of(layout).parent)
    sound, path = launch.read_steps(), record_of(layout).with_name("steps.npz")
    with np.load(path) as members:
        member = npy(members["rank0/seconds"])
    start = (whole := path.read_bytes()).index(member)
    header = len(member) - 8 * sound.timed[0].size
    words = set()
    for place in range(header):
        for bit in range(8):
            flipped = bytearray(whole)
            flipped[start + place] ^= 1 << bit
            path.write_bytes(flipped)
            with pytest.raises(ValueError, match=r"steps\.npz is damaged: "):
                launch.read_steps()
            path.write_bytes(whole)
            write_steps(layout, bytes(flipped[start : start + len(member)]))
            try:
                timed = launch.read_steps().timed
            except ValueError as error:
                words.add(str(error))
            else:
                # Some bits have no meaning, for example one in the white space at the
                # end.
                assert np.array_equal(timed, sound.timed)
    assert all(said.startswith(f"{path} is damaged: ") for said in words)
    # One damage makes numpy fail while it parses the header as Python.
    assert any("EOF in multi-line statement" in said for said in words)


def test_verify_names_steps_with_a_damaged_header(layout, tmp_path, capsys):
    write_bundle(layout, tmp_path / "bundle", anonymise=False)
    path = tmp_path / "bundle" / record_of(layout).relative_to(layout.root)
    path = path.with_name("steps.npz")
    path.write_bytes(path.read_bytes().replace(b"(8, 6)", b"(8, 6 ", 1))
    assert main(["verify", str(tmp_path / "bundle")]) == 1
    name = path.relative_to(tmp_path / "bundle").as_posix()
    assert f"{name}: is damaged: " in capsys.readouterr().out


def test_steps_that_took_no_time_are_stale(layout):
    none = np.zeros((8, 6))
    change_steps(record_of(layout).parent, rank0_seconds=none, rank1_seconds=none)
    assert "its steps took no time" in stale(layout)


def test_a_zip_bomb_is_not_unpacked(layout):
    write_steps(layout, npy_header((8, 6)) + bytes(2**26), zipfile.ZIP_DEFLATED)
    assert record_of(layout).with_name("steps.npz").stat().st_size < 2**18
    assert "is compressed" in stale(layout)


def test_steps_that_are_gone_are_named(layout):
    path = record_of(layout).with_name("steps.npz")
    good = path.read_bytes()
    # A changed byte is within the numbers of the first member.
    flipped = good[:300] + bytes([good[300] ^ 0xFF]) + good[301:]
    for damaged in (good[:500], flipped, b"", b"no archive at all"):
        path.write_bytes(damaged)
        assert "steps.npz is damaged" in stale(layout)
    np.savez(path, other=np.zeros(3))
    assert "steps.npz is damaged" in stale(layout)
    path.unlink()
    assert "steps.npz is damaged" in stale(layout)


# --- what is escaped ----------------------------------------------------------------


TEXTS = (
    FORMULA,
    "+1+1",
    "-1+1",
    "@SUM(A1)",
    "\t=1+1",
    SCRIPT,
    TERMINAL,
    "](javascript:alert(1))",
    "$\\frac{1}{0}$ \\input{/etc/passwd}",
    'a | b\nc, "d"',
)


def write_texts(root: Path, texts: Sequence[str]) -> Layout:
    """Results with each text wherever free text may stand."""
    planned, rows = [], []
    for size, text in enumerate(texts, 1):
        for name, topology in (("single", "1x1"), ("ddp", "1x2"), ("ddp", "1x4")):
            cell = plan_cell(
                make_cell(name, topology, batch_size=size), suffix=f".batch_size={size}"
            )
            planned.append(cell)
        planned[-1]["infeasible"] = text
        row = {"label": text, "cell": planned[-3]["id"], "step_ms": 3, "note": text}
        rows.append(row)
    name = "".join(texts)
    study = {"source": {"title": name, "base": "row"}, "rows": rows}
    layout = write_plan(root, planned, name=name, study=study)
    for text, single, failed in zip(texts, planned[::3], planned[1::3], strict=True):
        host = {"host": text, "cpu": text, "cores": 2, "memory_gib": 1, "gpus": []}
        software = {"torch": text, "python": text, "cuda": None, "nccl": None}
        write_launches(layout, single, hosts=[host], software=software)
        write_launches(layout, failed, count=2, status="crashed", reason=text)
        label = text if text.isprintable() else "another"
        span = {"kind": "phase", "name": label, "start_ms": 0.0, "ms": 1.0}
        operator = {"name": label, "calls": 1, "cpu_ms": 1.0, "device_ms": 0.0}
        profile = {"rank": 0, "steps": 1, "operators": [operator], "spans": [span]}
        write_profile(layout, single, profile=[profile])
    return layout


def test_texts_are_shown_and_not_obeyed(tmp_path, cli, monkeypatch):
    # One panel is enough, because all look alike.
    monkeypatch.setattr(panels, "MOST_PANELS", 1)
    layout = write_texts(tmp_path / "results", TEXTS)
    assert all(c.isprintable() or c == "\n" for c in cli("table", layout.root).out)
    for path in layout.root.rglob("*.csv"):
        with path.open(newline="") as file:
            cells = [cell for row in csv.reader(file) for cell in row]
        # No column has negative numbers, so these may get a quote as well.
        assert not [c for c in cells if c.startswith(("=", "+", "-", "@", "\t", "\r"))]
    page = Words(layout.table("html").read_text())
    assert "script" not in page.tags
    for path in layout.root.glob("*.md"):
        shown = path.read_text()
        assert "<script" not in shown
        assert "](javascript" not in shown
    for path in layout.root.glob("*.tex"):
        lines = path.read_text().splitlines()
        assert not [line for line in lines if "\\input{" in line.partition("%")[0]]
    for path in (layout.root / "plots").glob("*.svg"):
        assert "<script" not in path.read_text()
    write_bundle(layout, tmp_path / "results.tar.zst", anonymise=True)
    assert verify_bundle(tmp_path / "results.tar.zst").findings == []


# --- any other change -----------------------------------------------------------------

VALUES: list[Any] = [None, -1, 0, 10**30, 1e300, "x", "", [], {}, [None], True]


# Fields that not every record has.
TOLD = {
    "model": {"parameters": 5, "parameter_bytes": 20, "flops_per_sample": 7},
    "shape": {"global_batch": 128, "ranks": 2, "replicas": 2, "replica_ranks": 1},
    "gate": {
        **{"status": "ok", "dtype": "float64", "lossy": False, "tolerance": 1e-6},
        **{"weights_error": 1e-9, "loss_error": 1e-9},
    },
    "transport": {"seen": [{"libraries": {"nccl": {"gpudirect_rdma": True}}}]},
    "devices": [{"utilisation_mean": 0.5}],
    "collectives": [
        {
            **{"operation": "all_reduce", "bytes": size, "times_weights": 1.0},
            "seconds": [1e-3, 2e-3],
        }
        for size in (1024, 4096)
    ],
    "hosts": [
        {
            **{"host": "n1", "cpu": "a CPU", "cores": 2, "memory_gib": 8.0},
            **{"os": "an OS", "kernel": "6.1", "gpu_driver": None, "gpu_links": []},
            "gpus": [{"name": "a GPU", "memory_gib": 80.0}],
            "nics": [{"name": "eth0", "model": None, "driver": "x", "gbit_s": 25}],
        }
    ],
}


def find_leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value within a value, inner ones included."""
    if path:
        yield path
    if isinstance(value, list):
        value = dict(enumerate(value))
    if isinstance(value, dict):
        for key, one in value.items():
            yield from find_leaves(one, (*path, key))


def put(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    changed = copy.deepcopy(value)
    place = changed
    for key in path[:-1]:
        place = place[key]
    if new is KeyError:
        del place[path[-1]]
    else:
        place[path[-1]] = new
    return changed


@pytest.mark.parametrize("what", ["record", "plan", "profile"])
def test_any_change_gives_a_table_or_a_clear_no(layout, what):
    """One value at a time is replaced by a wrong value, or left out."""
    write_profile(layout, PLANNED)
    files = {"record": record_of(layout), "plan": layout.plan}
    files["profile"] = layout.attempt(PLANNED["id"], 1) / "profile/1/record.json"
    path = files[what]
    good = json.loads(path.read_text())
    if what == "record":
        good |= TOLD
    changes = [(p, v) for p in find_leaves(good) for v in (*VALUES, KeyError)]
    refusals = 0
    for place, new in random.Random(6).sample(changes, 150):
        path.write_text(json.dumps(put(good, place, new)))
        try:
            write_results(read(layout, strict=True), draw=False)
        except Exception as error:
            clear = isinstance(error, ValueError) and str(layout.root) in str(error)
            if not clear:
                raise AssertionError(f"{place} = {new!r}: {error!r}") from error
            refusals += 1
    assert 20 < refusals < 150
