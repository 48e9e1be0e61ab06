"""The experiment that is made of a training script: what is seen, what is guessed."""

from __future__ import annotations

from pathlib import Path

import pytest

from factories import make_site
from rankbench.commands._script import guess_keys
from rankbench.commands.init import make_project_here
from rankbench.matrix.own import describe_file

pytestmark = pytest.mark.unit

DDP = "from torch.distributed import init_process_group\ninit_process_group('gloo')\n"
ALONE = "import torch\nfor _ in range(9):\n    print(torch.ones(1))\n"
JOINED = {"topology": ["1x1", "1x2"], "backend": "gloo"}
ON_ALL = {"topology": "1x1", "cores_per_device": 2}
TEMPLATE = {"samples_per_step": "batch_size * devices"}


@pytest.mark.parametrize(
    ("source", "words", "keys", "guess"),
    [
        (
            f"{DDP}parser.add_argument('-b', '--batch-size', default=48)",
            ["--lr", "{x}"],
            {
                **{"args": "--lr '{{x}}' --batch-size {batch_size}", "batch_size": 48},
                **{**TEMPLATE, **JOINED},
            },
            "",
        ),
        (
            f"{DDP}parser.add_argument('-b', '--batch-size', default=48)",
            ["-b", "8", "--config=words.txt"],
            {
                **{"args": "-b {batch_size} --config=words.txt", "batch_size": 8},
                **{**TEMPLATE, **JOINED, "files": ["words.txt"]},
            },
            "files that it names are copied: words.txt",
        ),
        (
            DDP,
            ["--train_batch_size=16", "--backend=mpi"],
            {
                "args": "--train_batch_size={batch_size} --backend=mpi",
                **{"batch_size": 16, **TEMPLATE, **JOINED, "backend": "mpi"},
            },
            "",
        ),
        (
            f"{ALONE}DataLoader([], batch_size=8)",
            [],
            {"samples_per_step": "8 * devices", **ON_ALL},
            "it does not join its ranks: measured on 1x1 only",
        ),
        (
            f"{DDP}BATCH_SIZE = 24\nmp.spawn(main)",
            [],
            {"samples_per_step": "24 * devices", **ON_ALL},
            "it starts its ranks itself: measured on 1x1 only",
        ),
        (
            "import horovod.torch as hvd\nopen('words.txt')",
            [],
            {
                **{"samples_per_step": "devices", **JOINED},
                **{"launcher": "horovodrun", "files": ["words.txt"]},
            },
            "files that it names are copied: words.txt",
        ),
    ],
)
def test_keys_and_guesses(tmp_path, source, words, keys, guess):
    (tmp_path / "words.txt").touch()
    script = tmp_path / "my.train.py"
    script.write_text(source)
    found, guesses = guess_keys(describe_file(script), words, make_site())
    usual = {"name": "my-train", "script": "./my.train.py"}
    often = {"warmup": 5, "steps": 20, "launches": 4}
    assert found == {**usual, **keys, **often}
    assert guess in guesses or not guess


def test_another_experiment_is_not_overwritten(tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(DDP)
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
