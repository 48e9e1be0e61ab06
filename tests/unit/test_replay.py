"""Replay: from a bundle to an experiment, and from two sides to verdicts."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from factories import make_site, read_plan_of
from rankbench.commands import replay as command
from rankbench.plan import Plan
from rankbench.project.run import Run
from rankbench.record import Layout
from rankbench.results.bundle.replay import plan_replay, write_replay
from rankbench.results.bundle.verify import verify_bundle
from rankbench.results.bundle.write import write_bundle
from rankbench.schema import parse_yaml
from unit.attacks import HONEST
from unit.synthetic import write_launches

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]


def write_results(root: Path, plan: Plan, rate: float = 800) -> Layout:
    """Results of a plan: launches of each of its cells, all equally fast."""
    layout = Layout(root)
    root.mkdir(parents=True, exist_ok=True)
    layout.plan.write_bytes(plan.to_json())
    for cell in json.loads(layout.plan.read_text())["cells"]:
        if not cell["infeasible"]:
            write_launches(layout, cell, rate=rate)
        for own in cell["cell"]["own_files"].values():
            layout.own(own["digest"]).mkdir(parents=True, exist_ok=True)
            source = root.parent / "models" / own["file"]
            shutil.copyfile(source, layout.own(own["digest"]) / own["file"])
    return layout


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a profile; what is measured in it are launches that are made up."""
    shutil.copytree(ROOT / "local_profile", tmp_path / "here/local_profile")
    monkeypatch.chdir(tmp_path / "here")

    def execute(run: Run, argv: list[str], _: object) -> int:
        shutil.rmtree(run.layout.root, ignore_errors=True)
        write_results(run.layout.root, run.plan, 801)
        return 0

    monkeypatch.setattr(command, "execute", execute)
    return tmp_path / "here"


def write_theirs(place: Path, text: str, **site: int) -> tuple[Plan, Path]:
    """A plan of an experiment with this text, and its bundle."""
    plan = read_plan_of(place, text, make_site(**site))
    layout = write_results(place / "theirs", plan)
    layout.work.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(place / "experiment.yaml", layout.experiment)
    write_bundle(layout, place / "bundle", anonymise=False)
    return plan, place / "bundle"


def test_their_files_keep_their_names(tmp_path, here):
    """The name of a file is a part of its cells, with options as without."""
    (tmp_path / "models").mkdir()
    net = "def build(image_size, channels, classes, wide=1): ...\n"
    (tmp_path / "models/net.py").write_text(net)
    text = HONEST + "model: [convnet, models/net.py, {./models/net.py: {wide: 2}}]\n"
    plan, bundle = write_theirs(tmp_path, text)
    replay = plan_replay(bundle)
    (code,) = replay.code
    assert replay.cells == sorted(plan.cells)
    path = write_replay(replay, tmp_path / "again")
    written = parse_yaml(path.read_text(), str(path))
    assert written["model"][1:] == ["models/net.py", {"models/net.py": {"wide": 2}}]
    copy = path.parent / "models/net.py"
    assert copy.read_bytes() == (bundle / code).read_bytes()
    again = read_plan_of(path.parent, path.read_text(), make_site())
    assert [c.hash for c in again.feasible] == [c.hash for c in plan.feasible]


def test_each_row_gets_a_verdict(tmp_path, here, cli):
    """The launches are made up; tests/integration measures new ones."""
    plan, bundle = write_theirs(tmp_path, HONEST + "backend: [gloo, nccl]\n")
    said = cli("replay", bundle).out
    assert f"replay of {len(plan.feasible)} cells" in said
    assert said.endswith("nothing was run: add --run\n")
    assert [path.name for path in here.iterdir()] == ["local_profile"]
    run = ("replay", bundle, "--run", "--json", "--at-least")
    found = json.loads(cli(*run, "0.5").out)
    measured, others = len(plan.feasible), len(plan.cells) - len(plan.feasible)
    assert (found["verdict"], found["at_least"]) == ("PASS", 0.5)
    assert found["counts"] == {"PASS": measured, "no number": others}
    cli(*run, "1.9", status=1)
    cli(*run, "1", status=3)
    assert "expected a share" in cli(*run, bundle, status=2).err


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


def test_partitions_of_a_bundle_are_not_needed(tmp_path, here, cli):
    """Without Slurm, each row is compared with the cell of no partition."""
    theirs, bundle = write_theirs(tmp_path, PARTITIONS, nodes=2)
    hidden = tmp_path / "hidden"
    write_bundle(Layout(tmp_path / "theirs"), hidden, anonymise=True)
    assert verify_bundle(hidden).findings == []
    assert "nothing was run" in cli("replay", hidden).out
    texts = [path for path in hidden.rglob("*") if path.suffix in (".json", ".csv")]
    assert not [p for p in texts if re.search("=(near|far)", f"{p} {p.read_text()}")]
    done = cli("replay", bundle, "--run", "--at-least", "0.5", "--json")
    assert "this site lacks their Slurm partitions: each cell is measured" in done.err
    rows = json.loads(done.out)["cells"]
    assert {row["cell"] for row in rows} >= {*theirs.cells}
    assert {row["verdict"] for row in rows} == {"PASS"}
    assert sum("partition=far" in name for name in theirs.cells) == 1
