"""Replay: from a bundle to an experiment, and from two sides to verdicts."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from factories import make_site, read_plan_of
from rankbench.commands import replay as command
from rankbench.plan import Plan
from rankbench.project import Run
from rankbench.record import Layout
from rankbench.results.bundle import write_bundle
from rankbench.results.bundle.replay import plan_replay, write_replay
from unit.synthetic import write_launches, write_own_model
from unit.test_bundle import seal

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "docs/example"
ROWS = [*csv.DictReader((EXAMPLE / "table.csv").read_text().splitlines())]
MEASURED = sum(row["status"] == "ok" for row in ROWS)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Iterator[Path]:
    """A bundle with a model of its own, which leaves a mark if anything executes it."""
    place = tmp_path_factory.mktemp("own")
    write_bundle(write_own_model(place), place / "bundle", anonymise=True)
    yield place / "bundle"
    assert not (place / "executed").exists()


@pytest.fixture
def write_own(made: Path, tmp_path: Path) -> Callable[[str], Path]:
    """A copy of the bundle with another experiment."""

    def write(experiment: str) -> Path:
        bundle = shutil.copytree(made, tmp_path / "bundle")
        # An anonymous bundle need not have the experiment file of its plan.
        (bundle / "experiment.yaml").write_text(experiment)
        seal(bundle)
        return bundle

    return write


def test_the_example_becomes_an_experiment_of_another_name(tmp_path):
    replay = plan_replay(EXAMPLE)
    assert len(replay.cells) == MEASURED
    assert (replay.code, replay.images, replay.override) == ({}, {}, None)
    path = write_replay(replay, tmp_path / "here")
    theirs = yaml.safe_load((EXAMPLE / "experiment.yaml").read_text())
    assert yaml.safe_load(path.read_text()) == theirs | {"name": replay.name}
    assert replay.name.startswith("replay-quickstart-")


def test_their_files_are_taken_from_the_bundle(tmp_path, write_own):
    text = "name: x\nmodel: [lenet, ../models/net.py]\nsweeps: [{model: net.py}]\n"
    bundle = write_own(text)
    replay = plan_replay(bundle)
    (name,) = replay.code
    path = write_replay(replay, tmp_path / "here")
    written = yaml.safe_load(path.read_text())
    assert written["model"] == ["lenet", name]
    assert written["sweeps"] == [{"model": name}]
    assert (path.parent / name).read_bytes() == (bundle / name).read_bytes()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model: /etc/evil.py\n", "the bundle has no file of that name"),
        ("script: ../../evil.py\n", "the bundle has no file of that name"),
        ("a: &a [x]\nb: [*a, *a]\n", "has YAML aliases"),
        ("- 1\n", "is damaged: expected a mapping"),
        ("a: [\n", "is damaged"),
        ("[" * 2000, "is damaged"),
        ("a: !!python/object/apply:os.system [x]\n", "is damaged"),
        ("#" * 1_100_000, "has more than"),
    ],
)
def test_a_hostile_experiment_is_bad_input(write_own, text, said):
    bundle = write_own(text)
    with pytest.raises(ValueError, match=r"experiment\.yaml") as error:
        plan_replay(bundle)
    assert said in str(error.value)


def test_their_code_needs_a_word_and_a_faulty_bundle_none(
    tmp_path, write_own, monkeypatch, cli
):
    bundle = write_own("name: x\nmodel: net.py\n")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    run = ("replay", bundle, "--run", "--site", ROOT / "local_profile")
    said = cli(*run, status=2).err
    assert "brings code of its own: work/own/" in said
    assert "--run-their-code" in said
    (bundle / "table.csv").write_text("cell\n")
    assert (
        "is not replayed, because it has faults"
        in cli(*run, "--run-their-code", status=2).err
    )
    assert [*(tmp_path / "here").iterdir()] == []
    assert not (tmp_path / "executed").exists()


def test_without_run_it_only_shows(tmp_path, monkeypatch, cli):
    shutil.copytree(ROOT / "local_profile", tmp_path / "local_profile")
    monkeypatch.chdir(tmp_path)
    said = cli("replay", EXAMPLE).out
    assert f"replay of {MEASURED} cells" in said
    assert "experiment=replay/replay-quickstart-" in said
    assert said.endswith("nothing was run: add --run\n")
    assert [path.name for path in tmp_path.iterdir()] == ["local_profile"]


def test_each_row_gets_a_verdict(tmp_path, monkeypatch, cli):
    """The launches are those of the bundle, a year later; tests/integration measures
    new ones.
    """
    shutil.copytree(ROOT / "local_profile", tmp_path / "local_profile")
    monkeypatch.chdir(tmp_path)

    def execute(run: Run, argv: list[str], _: object) -> int:
        shutil.copytree(EXAMPLE, run.layout.root, dirs_exist_ok=True)
        for path in run.layout.records.rglob("record.json"):
            path.write_text(path.read_text().replace(' "2026-', ' "2027-'))
        return 0

    monkeypatch.setattr(command, "execute", execute)
    replay = ("replay", EXAMPLE, "--run", "--at-least")
    found = json.loads(cli(*replay, "0.5", "--json").out)
    others = len(ROWS) - MEASURED
    assert (found["verdict"], found["at_least"]) == ("PASS", 0.5)
    assert found["counts"] == {"PASS": MEASURED, "no number": others}
    said = cli(*replay, "1.9", status=1).out
    assert said.startswith("FAIL ")
    cli(*replay, "1", status=3)
    assert "expected a ratio" in cli(*replay, EXAMPLE, status=2).err


PARTITIONS = """
name: two
strategy: ddp
topology: 1x2
steps: 8
warmup: 2
partition: [near, far]
allocation: experiment
seed: [1, 2]
exclude: partition=far seed=2
"""


def write_results(root: Path, plan: Plan, rate: float) -> Layout:
    """Results of a plan: launches of each of its cells, all equally fast."""
    layout = Layout(root)
    root.mkdir(parents=True, exist_ok=True)
    layout.plan.write_bytes(plan.to_json())
    for cell in json.loads(layout.plan.read_text())["cells"]:
        write_launches(layout, cell, rate=rate)
    return layout


def test_partitions_of_a_bundle_are_not_needed(tmp_path, monkeypatch, cli):
    """Without Slurm, each row is compared with the cell of no partition."""
    theirs = read_plan_of(tmp_path, PARTITIONS, make_site(nodes=2))
    layout = write_results(tmp_path / "theirs", theirs, 800)
    shutil.copyfile(tmp_path / "experiment.yaml", layout.experiment)
    write_bundle(layout, tmp_path / "bundle", anonymise=False)
    shutil.copytree(ROOT / "local_profile", tmp_path / "local_profile")
    monkeypatch.chdir(tmp_path)

    def execute(run: Run, argv: list[str], _: object) -> int:
        write_results(run.layout.root, run.plan, 801)
        return 0

    monkeypatch.setattr(command, "execute", execute)
    done = cli("replay", "bundle", "--run", "--at-least", "0.5", "--json")
    assert "this site lacks their Slurm partitions: each cell is measured" in done.err
    rows = json.loads(done.out)["cells"]
    assert {row["cell"] for row in rows} >= {*theirs.cells}
    assert {row["verdict"] for row in rows} == {"PASS"}
    assert sum("partition=far" in name for name in theirs.cells) == 1
