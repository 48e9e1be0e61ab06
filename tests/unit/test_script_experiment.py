"""The experiment that is made of a training script: what is seen, what is guessed."""

from __future__ import annotations

from pathlib import Path

import pytest

from factories import make_site
from rankbench.commands._script import guess_keys
from rankbench.commands.init import make_project_here
from rankbench.matrix.own import describe_file
from rankbench.schema import load_yaml

pytestmark = pytest.mark.unit

GUESSES = load_yaml(Path(__file__).parent / "cases/guesses.yaml")


@pytest.mark.parametrize("case", GUESSES)
def test_keys_and_guesses(tmp_path, case):
    given = GUESSES[case]
    (tmp_path / "words.txt").touch()
    script = tmp_path / "my.train.py"
    script.write_text(given["source"])
    words = given.get("words", [])
    found, guesses = guess_keys(describe_file(script), words, make_site())
    usual = {"name": "my-train", "script": "./my.train.py"}
    often = {"warmup": 5, "steps": 20, "launches": 4}
    assert found == {**usual, **given["keys"], **often}
    assert given.get("guess") in [None, *guesses]


def test_another_experiment_is_not_overwritten(tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("init_process_group('gloo')\n")
    # A folder that is no project would become one.
    said = cli("run", "-n", "train.py", "--batch-size", "4").out
    assert [path.name for path in Path().iterdir()] == ["train.py"]
    make_project_here()
    assert said == cli("run", "-n", "train.py", "--batch-size", "4").out
    assert "would make train.yaml:\n# Made by: rankbench run train.py --batch" in said
    assert "\nargs: --batch-size {batch_size}\n" in said
    assert not Path("train.yaml").exists()
    Path("made.yaml").write_text(said.partition(":\n")[2])
    shown = cli("status", "made.yaml", "train.gloo.1x1.batch_size=4").out
    # It chooses everything else itself.
    assert "batch_size       4\n" in shown
    assert not {"precision", "optimizer", "model"} & set(shown.split())
    Path("train.yaml").write_text("name: mine\n")
    said = cli("run", "train.py", status=2).err
    assert "train.yaml is another experiment: `rankbench run train.yaml` mea" in said
    Path("net.py").write_text("def build():\n    pass\n")
    assert "is a file for model" in cli("run", "net.py", status=2).err
