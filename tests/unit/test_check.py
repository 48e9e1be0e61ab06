"""`rankbench check` of models and data sets of the user's own."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from rankbench.cli import main
from rankbench.rank import variants

pytestmark = pytest.mark.unit

MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.first, self.last = nn.LazyLinear(width), nn.Linear(width, classes)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, images):
        EDIT
        return self.last(self.norm(self.first(images.flatten(1))))

def build(image_size, classes, width=8):
    net = Net(width, classes)
    net.first = nn.Linear(image_size**2, width)
    return net
"""
DATA = """
import numpy as np
from rankbench.rank.data import Arrays

SHAPE = {"channels": 1, "image_size": 4, "classes": 3, "train": 6, "test": 2}

def generate(seed):
    rng = np.random.default_rng(SEED)
    images = rng.integers(0, 256, (8, 1, 4, 4), dtype=np.uint8)
    labels = np.arange(8) % CLASSES
    return Arrays(
        train_images=images[:6], train_labels=labels[:6],
        test_images=images[6:], test_labels=labels[6:],
    )
"""


@pytest.fixture(autouse=True)
def _apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(variants, "own", {})
    monkeypatch.chdir(tmp_path)


def results(
    path: Path, capsys: pytest.CaptureFixture[str], *more: str
) -> tuple[int, dict[str, bool | None]]:
    """The exit status, and the result of each check."""
    status = main(["check", str(path), *more, "--json"])
    found = json.loads(capsys.readouterr().out)
    return status, {one["check"]: one["well"] for one in found["checks"]}


def test_a_model_that_can_do_most(tmp_path, capsys):
    path = tmp_path / "net.py"
    path.write_text(MODEL.replace("EDIT", "pass"))
    status, found = results(path, capsys, "--option", "width=4")
    assert status == 0
    assert found.pop("splits") is None  # It is no sequence of parts.
    assert found.pop("compiles") is not False  # Without a compiler it is not tried.
    assert set(found.values()) == {True}
    main(["check", str(path)])
    said = capsys.readouterr().out
    assert (
        "declare in the file what was found: NEEDS = {'batch_statistics': True" in said
    )


def test_a_model_that_reads_values_is_built_as_a_whole(tmp_path, capsys):
    path = tmp_path / "net_reads.py"
    path.write_text(
        MODEL.replace("EDIT", "pass").replace(
            "    return net\n",
            "    assert net.first.weight.sum().item()\n    return net\n",
        )
    )
    status, found = results(path, capsys)
    assert (status, found["shards"]) == (0, None)
    main(["check", str(path)])
    said = capsys.readouterr().out
    assert "whole model at first: it reads values" in said
    assert "'on_meta': False" in said


@pytest.mark.parametrize(
    ("edit", "check"),
    [
        ("raise RuntimeError('no')", "trains"),
        ("images = images.detach(); self.norm.weight.requires_grad_(False)", "trains"),
        ("images = images.float()", "gate"),
    ],
)
def test_a_model_that_cannot(tmp_path, capsys, edit, check):
    path = tmp_path / f"net_{check}.py"
    path.write_text(MODEL.replace("EDIT", edit))
    status, found = results(path, capsys)
    assert status == 1
    assert found[check] is False


def test_a_fault_is_no_need(tmp_path, capsys):
    path = tmp_path / "net_faulty.py"
    path.write_text(MODEL.replace("EDIT", "images = images[:, :, 1:]"))
    status, found = results(path, capsys)
    assert (status, list(found)) == (1, ["builds", "seeds", "shards", "trains"])
    main(["check", str(path)])
    said = capsys.readouterr().out
    assert "its inputs are images of 1 x 28 x 28 and 10 classes" in said
    assert "NEEDS" not in said


def test_a_model_without_build_is_no_script(tmp_path, cli):
    path = tmp_path / "net.py"
    path.write_text(MODEL.replace("EDIT", "pass").replace("def build", "def make"))
    said = cli("check", path, status=2).err
    assert "has the model Net, but no function build(**options)" in said


@pytest.mark.parametrize(
    ("seed", "classes", "wrong"),
    [("seed", "3", []), ("seed", "5", ["labels"]), ("None", "3", ["repeats"])],
)
def test_data(tmp_path, capsys, seed, classes, wrong):
    path = tmp_path / f"data_{seed}_{classes}.py"
    path.write_text(DATA.replace("SEED", seed).replace("CLASSES", classes))
    status, found = results(path, capsys)
    assert [name for name, well in found.items() if well is False] == wrong
    assert status == bool(wrong)


def test_bad_input(tmp_path, cli):
    path = tmp_path / "net.py"
    assert "net.py: cannot be read: No such" in cli("check", path, status=2).err
    path.write_text(MODEL.replace("EDIT", "pass"))
    for given, said in (("width", "expected NAME=VALUE"), ("widht=1", "mean 'width'")):
        assert said in cli("check", path, "--option", given, status=2).err


@pytest.mark.parametrize(
    ("needs", "said"),
    [
        ("'inputs': 'tokens'", "net takes tokens; digits holds images"),
        ("'min_image_size': 64", "net needs images of 64 pixels or more, not 28"),
        ("'channels': [3]", r"net takes \[3\] channels, not 1"),
    ],
)
def test_data_that_do_not_fit(tmp_path, cli, needs, said):
    path = tmp_path / "net.py"
    path.write_text(f"NEEDS = {{{needs}}}\ndef build(): ...\n")
    assert re.search(f"--data: {said}", cli("check", path, status=2).err)


def test_a_script_says_what_it_lacks(tmp_path, capsys):
    path = tmp_path / "train.py"
    path.write_text("open('settings.txt')\nimport helper, no_such_package\n")
    for name in ("helper.py", "settings.txt", "other.txt"):
        (tmp_path / name).touch()
    status, found = results(path, capsys)
    assert (status, found) == (1, {"packages": False, "files": None})
    main(["check", str(path)])
    said = capsys.readouterr().out
    assert "no_such_package" in said
    assert "settings.txt" in said
    assert "other.txt" not in said
    path.write_text("import helper\n")
    assert results(path, capsys) == (0, {"packages": True})
