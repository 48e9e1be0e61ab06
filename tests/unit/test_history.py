"""`rankbench history`: the store, what it says of runs, exit status, and the page."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import re
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pages import Words
from rankbench import cli
from rankbench.record import Layout
from rankbench.results.compare.sides import (
    CellLaunches,
    Side,
    encode_run,
    read_side,
)
from rankbench.results.history.changes import follow
from rankbench.results.history.store import ADDED, read_store
from rankbench.results.history.store import add_run as store_run
from unit.synthetic import (
    make_cell,
    plan_cell,
    write_launch,
    write_launches,
    write_plan,
)

pytestmark = pytest.mark.unit

A, B = "ddp.gloo.1x2.convnet.digits", "single.none.1x1.convnet.digits"
EXAMPLE = Path(__file__).resolve().parents[2] / "docs/example"
SCRIPT = "<script>alert(1)</script>"


def make_run(night: int, levels: dict[str, float], **facts: str) -> Side:
    """A run of six launches for each cell."""
    begun = datetime(2026, 1, 1, 2, tzinfo=UTC) + timedelta(days=night)
    times = tuple((begun + timedelta(minutes=i)).isoformat() for i in range(6))
    cells = {
        name: CellLaunches(
            hash="0" * 16,
            status="ok",
            reason=None,
            facts={key: (value,) for key, value in facts.items()},
            started=times,
            rounds=(None,) * 6,
            throughput=tuple(level * (1 + 0.001 * i) for i in range(6)),
        )
        for name, level in levels.items()
    }
    return Side(
        name="run", experiment="nightly", cells=cells, begun=times[0], ended=times[-1]
    )


def change_cell(run: Side, **changes: Any) -> Side:
    return replace(run, cells={**run.cells, A: replace(run.cells[A], **changes)})


def add_run(store: Path, run: Side) -> tuple[Path, str]:
    return store_run(store, encode_run(run))


def fill(
    store: Path, levels: np.ndarray, *, name: str = A, slow_from: int = 999
) -> None:
    """A run for each level; those from `slow_from` on have another torch."""
    for night, level in enumerate(levels):
        torch = "2.14.0" if night >= slow_from else "2.13.0"
        add_run(store, make_run(night, {name: level, B: 500.0}, torch=torch))


def scatter(nights: int, seed: int = 1) -> np.ndarray:
    return 1000 * np.exp(np.random.default_rng(seed).normal(0, 0.01, nights))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def slowed(store: Path) -> Path:
    """20 runs, of which the last 5 are 10 % slower."""
    levels = scatter(20)
    levels[15:] *= 0.9
    fill(store, levels, slow_from=15)
    return store


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    status = cli.main(["history", *map(str, arguments)])
    said = capsys.readouterr()
    return status, said.out, said.err


def run_json(capsys, *arguments: object) -> tuple[int, Any]:
    status, out, _ = run(capsys, *arguments, "--json")
    return status, json.loads(out)


def write_results(root: Path, *, rate: float = 800, launches: int = 6) -> Layout:
    planned = plan_cell(make_cell("ddp", "1x2"))
    layout = write_plan(root, [planned], launches=launches)
    write_launches(layout, planned, rate=rate, count=launches, wanted=launches)
    return layout


# Adding.


def test_a_run_is_one_file_named_by_its_digest(tmp_path, store, capsys):
    layout = write_results(tmp_path / "results")
    status, found = run_json(capsys, "add", layout.root, "--store", store)
    assert (status, found[0]["what"]) == (0, "added")
    (path,) = store.iterdir()
    assert path == Path(found[0]["run"])
    assert path.stem == hashlib.sha256(path.read_bytes()).hexdigest()
    stored = json.loads(path.read_text())
    assert stored["begun"] == "2026-01-01T00:00:01+00:00"
    cell = stored["cells"][A]
    assert cell["status"] == "ok"
    assert len(cell["throughput"]) == len(cell["started"]) == 6
    facts = stored["facts"][cell["facts"]]
    assert {"host", "torch", "image", "code of ranks"} <= facts.keys()


def test_adding_twice_changes_nothing_and_says_so(tmp_path, store, capsys):
    layout = write_results(tmp_path / "results")
    run(capsys, "add", layout.root, "--store", store)
    (path,) = store.iterdir()
    before = path.stat()
    status, out, _ = run(capsys, "add", layout.root, "--store", store)
    assert status == 0
    assert "in the store already: nothing changed" in out
    after = path.stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert list(store.iterdir()) == [path]


def test_a_bundle_is_the_run_that_it_was_made_of(tmp_path, store, capsys):
    bare = tmp_path / "results"
    shutil.copytree(EXAMPLE, bare)
    (bare / "manifest.json").unlink()
    assert run(capsys, "add", bare, "--store", store)[0] == 0
    status, found = run_json(capsys, "add", EXAMPLE, "--store", store)
    assert (status, found[0]["what"]) == (0, "known")


def test_a_changed_bundle_is_refused(tmp_path, store, capsys):
    changed = tmp_path / "changed"
    shutil.copytree(EXAMPLE, changed)
    (record, *_) = sorted(changed.glob("records/*/1/1/record.json"))
    found = re.search(r'"samples": (\d+)', record.read_text())
    assert found
    other = "9" * len(found[1])
    record.write_text(record.read_text().replace(found[0], f'"samples": {other}'))
    status, _, said = run(capsys, "add", EXAMPLE, changed, "--store", store)
    assert status == 2
    assert f"{changed} is not what was published" in said
    assert "has another SHA-256" in said
    assert not store.exists(), "the intact one must not be added either"


@pytest.mark.parametrize("what", ["nothing", "plan", "text"])
def test_bad_input_is_said(tmp_path, store, capsys, what):
    path = tmp_path / "given"
    if what == "plan":
        write_plan(path, [plan_cell(make_cell("ddp", "1x2"))])
    elif what == "text":
        path.write_text("no bundle")
    status, _, said = run(capsys, "add", path, "--store", store)
    assert status == 2
    assert str(path) in said
    assert not store.exists()


def test_a_time_that_is_none_is_refused(tmp_path, store, capsys):
    planned = plan_cell(make_cell("ddp", "1x2"))
    layout = write_plan(tmp_path / "results", [planned], launches=1)
    time = "2026-01-01T00:00:01 and more"
    write_launch(layout, planned, wanted=1, started=time)
    status, _, said = run(capsys, "add", layout.root, "--store", store)
    assert status == 2
    assert "started" in said or "begun" in said
    assert not store.exists()


def test_a_run_without_a_number_is_kept(tmp_path, store, capsys):
    planned = plan_cell(make_cell("ddp", "1x2"))
    layout = write_plan(tmp_path / "results", [planned], launches=1)
    write_launch(layout, planned, wanted=1, status="crashed", reason="it crashed")
    assert run(capsys, "add", layout.root, "--store", store)[0] == 0
    (found,) = read_store(store).runs
    assert found.cells[A].status == "crashed"


def _add_many(store: Path, nights: range) -> None:
    for night in nights:
        assert add_run(store, make_run(night, {A: 1000.0 + night}))[0].exists()


def test_two_writers_lose_nothing(store):
    context = multiprocessing.get_context("fork")
    # Nights 10 to 19 are written by both.
    spans = range(0, 20), range(10, 30)
    writers = [context.Process(target=_add_many, args=(store, one)) for one in spans]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    found = read_store(store)
    assert not found.damaged
    assert [one.begun for one in found.runs] == sorted(
        make_run(night, {}).begun for night in range(30)
    )
    assert [path for path in store.iterdir() if path.suffix != ".json"] == []


# Damage.


@pytest.mark.parametrize("damage", ["cut", "changed", "named", "contradiction"])
def test_damage_is_named_and_other_runs_are_used(slowed, capsys, damage):
    path = sorted(slowed.iterdir())[0]
    data = path.read_bytes()
    if damage == "named":
        path = path.rename(slowed / "copy.json")
    elif damage == "contradiction":
        # The digest is right: somebody wrote it so.
        path.unlink()
        data = data.replace(b'"started":[', b'"started":["2026-01-01T00:00:00+00:00",')
        path = slowed / f"{hashlib.sha256(data).hexdigest()}.json"
        path.write_bytes(data)
    else:
        path.write_bytes(data[:-9] if damage == "cut" else data.replace(b"1", b"2"))
    status, found = run_json(capsys, "--store", slowed)
    assert status in (0, 1)
    assert len(found["runs"]) == 19
    (said,) = found["damaged"]
    assert path.name in said
    assert path.name in run(capsys, "--store", slowed)[2]


def test_adding_again_restores_a_damaged_file(store):
    path, what = add_run(store, make_run(1, {A: 1000.0}))
    assert what == ADDED
    whole = path.read_bytes()
    path.write_bytes(whole[:50])
    assert add_run(store, make_run(1, {A: 1000.0})) == (path, "restored")
    assert path.read_bytes() == whole


@pytest.mark.parametrize("what", ["none", "empty", "all damaged"])
def test_a_store_without_runs_is_bad_input(store, capsys, what):
    if what != "none":
        store.mkdir()
    if what == "all damaged":
        (store / f"{'0' * 64}.json").write_text("{")
    status, _, said = run(capsys, "--store", store)
    assert status == 2
    assert str(store) in said


# What it says.


def test_what_changed_since_when_and_what_differs(slowed, capsys):
    _, found = run_json(capsys, "--store", slowed)
    (change,) = found["changes"]
    assert change["cell"] == A
    assert change["verdict"] == "worse"
    assert change["since"] == "2026-01-16T02:00:00+00:00"
    assert change["ratio_lo"] < 0.9 < change["ratio_hi"] < 1
    assert (change["runs_old"], change["runs_new"]) == (15, 5)
    assert change["differs"] == {"torch": {"old": ["2.13.0"], "new": ["2.14.0"]}}
    text = run(capsys, "--store", slowed)[1]
    assert "2026-01-16 02:00" in text
    assert "torch: 2.13.0 -> 2.14.0" in text


def test_status_is_1_for_the_run_that_shows_it_and_0_after(store, capsys):
    levels = scatter(30, seed=2)
    levels[20:] *= 0.9
    status = []
    for night, level in enumerate(levels):
        add_run(store, make_run(night, {A: level}))
        status.append(run(capsys, "--store", store)[0])
    assert status.count(1) == 1
    assert status.index(1) in range(21, 25)


def test_a_faster_cell_is_no_finding(store, capsys):
    levels = scatter(20)
    levels[17:] *= 1.2
    fill(store, levels)
    status, found = run_json(capsys, "--store", store)
    assert status == 0
    assert [one["verdict"] for one in found["changes"]] == ["better"]


def test_a_slowdown_after_an_improvement_is_news(store, capsys):
    """Even if the one change that is left moves from there to here."""
    levels = scatter(32, seed=7)
    levels[24:] *= 1.012
    levels[30:] *= 0.93
    fill(store, levels[:31])
    assert run(capsys, "--store", store)[0] == 0
    fill(store, levels)
    assert run(capsys, "--store", store)[0] == 1


def test_nothing_changed(store, capsys):
    fill(store, scatter(20))
    status, out, _ = run(capsys, "--store", store)
    assert status == 0
    assert "No change of level was found" in out


def test_one_bad_run_is_no_change(store, capsys):
    levels = scatter(20)
    levels[-1] *= 0.5
    fill(store, levels)
    assert run_json(capsys, "--store", store)[1]["changes"] == []


def test_another_definition_begins_another_line(store, capsys):
    for night in range(8):
        one = make_run(night, {A: 1000.0})
        add_run(store, change_cell(one, hash=("0" if night < 5 else "1") * 16))
    _, found = run_json(capsys, "--store", store)
    assert [len(line["points"]) for line in found["cells"]] == [5, 3]
    text = run(capsys, "--store", store)[1]
    assert f"{A}: defined otherwise since 2026-01-06 02:00" in text


def test_launches_that_were_added_twice_count_once(tmp_path, store):
    """A run that was added before it was complete, and again afterwards."""
    layout = write_results(tmp_path / "results", launches=3)
    add_run(store, read_side(layout.root))
    planned = plan_cell(make_cell("ddp", "1x2"))
    for launch in (4, 5):
        write_launch(layout, planned, launch, wanted=3)
    add_run(store, read_side(layout.root))
    runs = read_store(store).runs
    assert len(runs) == 2
    ((line,)) = (follow(runs).lines,)
    assert [len(point.cell.throughput) for point in line[0].points] == [5]


def test_a_cell_that_has_lost_its_number_is_named(slowed, capsys):
    one = make_run(30, {A: 900.0, B: 500.0})
    lost = {"status": "crashed", "reason": "it crashed", "facts": {}}
    add_run(slowed, change_cell(one, started=(), throughput=(), rounds=(), **lost))
    status, out, _ = run(capsys, "--store", slowed)
    assert status == 0
    assert f"{A}: no number in the newest run: crashed" in out


def test_one_cell_has_its_runs(slowed, capsys):
    _, found = run_json(capsys, "--store", slowed, "--cell", A)
    assert [line["cell"] for line in found["cells"]] == [A]
    assert found["searched"] == 2, "changes of all cells hold together"
    out = run(capsys, "--store", slowed, "--cell", A)[1]
    assert len([line for line in out.splitlines() if line.startswith("2026-")]) == 21
    assert B not in out


def test_an_unknown_cell_is_bad_input(slowed, capsys):
    status, _, said = run(capsys, "--store", slowed, "--cell", "ddp.x")
    assert status == 2
    assert A in said


# The page.


def test_the_page_has_the_changes_and_a_plot_and_asks_for_nothing_else(
    slowed, tmp_path, capsys
):
    page = tmp_path / "page.html"
    status, out, _ = run(capsys, "--store", slowed, "--page", page)
    assert status in (0, 1)
    assert str(page) in out
    words = Words(page.read_text())
    assert not {"link", "script"} & {*words.tags}
    assert 'src="plots/page.svg"' in page.read_text()
    assert A in (tmp_path / "plots/page.svg").read_text()
    assert "default-src 'none'" in page.read_text()
    assert "2026-01-16 02:00" in words.text
    assert "torch: 2.13.0 -> 2.14.0" in words.text


def test_what_a_store_says_becomes_no_markup(store, tmp_path, capsys):
    levels = scatter(20)
    levels[15:] *= 0.9
    for night, level in enumerate(levels):
        host = "node1" if night < 15 else f"{SCRIPT}\x1b[2J"
        one = make_run(night, {f"{A}{SCRIPT}": level}, host=host)
        add_run(store, replace(one, experiment=SCRIPT))
    page = tmp_path / "page.html"
    out = run(capsys, "--store", store, "--page", page)[1]
    assert "\x1b" not in out
    assert SCRIPT not in page.read_text()
    assert SCRIPT not in (tmp_path / "plots/page.svg").read_text()
    assert SCRIPT in Words(page.read_text()).text
