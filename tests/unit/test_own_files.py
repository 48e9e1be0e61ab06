"""Models, data sets, strategies and scripts in files of the user's own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from factories import read_experiment, read_pairs, read_plan_of
from rankbench.launch.job.provenance import freeze_files
from rankbench.own_files import (
    count_samples,
    files_below,
    fill_arguments,
    find_files,
    hash_files,
)
from rankbench.plan import PLAN_VERSION, read_plan
from rankbench.rank import models, variants
from rankbench.results.read.records import read_checked

pytestmark = pytest.mark.unit

NET = """
from torch import nn
from layers import block

def build(channels, image_size, classes, width=32, *, depth: int = 2, **others):
    return nn.Sequential(nn.Flatten(), block(channels * image_size**2, classes))
"""
LAYERS = "from torch import nn\nblock = nn.Linear\n"
CORPUS = """
SHAPE = {"channels": 1, "image_size": 8, "classes": 10, "train": 64, "test": 32}

def generate(seed): ...
"""
LATE = """
from rankbench.rank.strategies.ddp import Ddp

class Late(Ddp):
    like = "ddp"
    needs = {"min_devices": 2}
    options = {"late": {"type": "integer", "default": 1}}
"""
OWN = "name: x\nstrategy: ./late.py\nmodel: ./net.py\ndata: ./corpus.py\n"
SCRIPT = (
    "name: x\nscript: ./train.py\nsteps: 5\n"
    "args: --batch {batch_size}\nsamples_per_step: batch_size * devices\n"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a file of each kind."""
    texts = {"net": NET, "layers": LAYERS, "corpus": CORPUS, "late": LATE}
    for name, text in {**texts, "train": "import layers\n"}.items():
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


def test_files_of_all_kinds_are_variants(folder):
    (cell_id, cell), *others = read_experiment(folder, OWN).cells.items()
    assert not others
    assert cell_id == "late.gloo.1x1.net.corpus"
    assert cell.options["late"] == 1
    assert "bucket_mb" in cell.options
    assert cell.model_options == {"width": 32, "depth": 2}
    assert [cell.own_digests[kind]["file"] for kind in ("model", "data", "strategy")]
    # What the file says is planned with, as for variants of rankbench.
    (planned,) = read_plan_of(folder, OWN).cells.values()
    assert "2 devices" in str(planned.infeasible)


def test_a_model_that_is_built_whole_marks_rows_that_split_it(folder):
    net = NET.replace("def build", 'NEEDS = {"on_meta": False}\n\ndef build', 1)
    (folder / "net.py").write_text(net)
    text = "name: x\nmodel: ./net.py\nstrategy: [single, ddp, fsdp]\ntopology: 1x2\n"
    cells = read_plan_of(folder, text).cells.values()
    marks = {one.cell.strategy: one.marks for one in cells}
    assert marks == {"single": [], "ddp": [], "fsdp": ["built-whole"]}


def test_planning_imports_nothing_of_the_users(folder):
    for name in ("net", "corpus", "late", "train", "layers"):
        path = folder / f"{name}.py"
        path.write_text(path.read_text() + "\nraise SystemExit('imported')\n")
    read_plan_of(folder, OWN)
    read_plan_of(folder, SCRIPT)


def test_options_are_arguments_of_build(folder):
    text = "name: x\nstrategy: single\nmodel: {./net.py: {width: [16, 32], rope: true}}"
    cells = read_experiment(folder, text).cells
    assert list(cells) == [
        "single.none.1x1.net.digits.width=16.rope=true",
        "single.none.1x1.net.digits.rope=true",
    ]
    with pytest.raises(ValueError, match=r"model\.net: width: expected integer"):
        read_experiment(folder, text.replace("16", "wide"))


def test_an_edited_file_makes_another_cell(folder):
    (before,) = read_experiment(folder, OWN).cells.values()
    # The model imports this file.
    (folder / "layers.py").write_text(LAYERS + "# edited\n")
    (after,) = read_experiment(folder, OWN).cells.values()
    assert after.hash() != before.hash()
    assert after.own_files["data"] == before.own_files["data"]
    (folder / "unrelated.py").write_text("")
    (again,) = read_experiment(folder, OWN).cells.values()
    assert again == after


def test_files_in_folders_have_their_own_names(folder):
    for name in ("a", "b"):
        (folder / name).mkdir()
        (folder / name / "net.py").write_text("def build(): ...\n")
    text = "name: x\nstrategy: single\nmodel: [a/net.py, ./b/net.py]\n"
    ids = list(read_experiment(folder, text).cells)
    assert ids == ["single.none.1x1.a-net.digits", "single.none.1x1.b-net.digits"]


def test_local_imports_are_found(tmp_path):
    texts = {
        "train.py": "import os, model.deep\nfrom model import norm\nimport json5\n",
        "model/__init__.py": "from . import attention\n",
        "model/deep.py": "from ..outside import nothing\n",
        "model/norm.py": "from .parts.scale import scale\n",
        "model/attention.py": "def f():\n    import late\n",
        "model/parts/scale.py": "scale = 1\n",
        "late.py": "",
        "unused.py": "",
        "data/ids.bin": "0",
        "data/more/ids.bin": "1",
    }
    for name, text in texts.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = find_files(tmp_path / "train.py", ["data"])
    assert list(found) == sorted(texts.keys() - {"unused.py"})
    with pytest.raises(ValueError, match="there is no such file"):
        find_files(tmp_path / "train.py", ["absent"])
    with pytest.raises(ValueError, match="expected a path below"):
        find_files(tmp_path / "train.py", ["../data"])


BUILD, DRAW = "def build(width=1): ...\n", "def generate(): ...\n"


@pytest.mark.parametrize(
    ("name", "text", "key", "complaint"),
    [
        ("net.py", "def build(:\n", "model", "net.py: does not compile in line 1"),
        ("net.py", "x = 1\n", "model", r"has no function build\(\*\*options\)"),
        ("net.py", f"NEEDS = {{'sequental': True}}\n{BUILD}", "model", "'sequential'"),
        ("net.py", f"NEEDS = {{'compiles': 1}}\n{BUILD}", "model", "expected boolean"),
        ("net.py", f"NEEDS = []\n{BUILD}", "model", "NEEDS: expected a dictionary"),
        ("net.py", f"OPTIONS = {{'widht': {{}}}}\n{BUILD}", "model", "mean 'width'"),
        ("net.py", f"OPTIONS = {{'width': {{}}}}\n{BUILD}", "model", "'default' is mi"),
        ("net.py", "def build(chanels): ...\n", "model", "'chanels' is missing"),
        ("corpus.py", "def generate(): ...\n", "data", "has no SHAPE"),
        ("corpus.py", "SHAPE = {'train': 4}\n", "data", "has no function generate"),
        ("corpus.py", f"SHAPE = {{'chanels': 1}}\n{DRAW}", "data", "mean 'channels'"),
        ("corpus.py", f"SHAPE = {{'test': 1.5}}\n{DRAW}", "data", "expected integer"),
        ("late.py", "class Late: ...\n", "strategy", "has no literal 'needs'"),
        ("other.py", None, "model", r"model: there is no file .*other\.py"),
        ("lenet.py", "def build(): ...\n", "model", "lenet is a model of rankbench"),
    ],
)
def test_unusable_files_are_refused(folder, name, text, key, complaint):
    if text is not None:
        (folder / name).write_text(text)
    head = "name: x\n" if key == "strategy" else "name: x\nstrategy: single\n"
    with pytest.raises(ValueError, match=complaint):
        read_experiment(folder, f"{head}{key}: './{name}'\n")


def test_a_package_that_is_missing_is_said_before(folder):
    for name in ("layers", "late", "corpus", "train"):
        path = folder / f"{name}.py"
        path.write_text(f"import no_such_{name}\n{path.read_text()}")
    late = (folder / "late.py").read_text()
    optional = "try:\n    import no_such_late\nexcept ImportError:\n    pass"
    (folder / "late.py").write_text(late.replace("import no_such_late", optional))
    (planned,) = read_plan_of(
        folder, OWN + "topology: 1x2\nbatch_size: 8\n"
    ).cells.values()
    said = "net imports no_such_layers, which is not installed here"
    assert planned.infeasible == said
    (planned,) = read_plan_of(folder, SCRIPT).cells.values()
    assert "imports no_such_" in str(planned.infeasible)


def test_a_copy_is_frozen_or_refused(folder, tmp_path):
    files = find_files(folder / "net.py")
    digest = hash_files(files)
    place = tmp_path / "own" / digest[:16]
    freeze_files(place, files, digest)
    assert list(files_below(place)) == ["layers.py", "net.py"]
    (folder / "net.py").write_text("changed")
    freeze_files(place, files, digest)  # It is there, and stays.
    assert (place / "net.py").read_text() == NET
    with pytest.raises(ValueError, match="changed while the run began: run again"):
        freeze_files(place.with_name("0"), files, digest)
    assert not place.with_name("0").exists()


def test_ranks_load_the_file_and_give_what_it_takes(folder, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(variants, "own", {})
    variants.own["model", "net"] = folder / "net.py"
    sizes = {"channels": 1, "image_size": 8, "classes": 10}
    model = models.build("net", **sizes, options={"width": 8, "other": 1})
    assert sum(p.numel() for p in model.parameters()) == 650
    (folder / "none.py").write_text("def build(): return 3\n")
    variants.own["model", "none"] = folder / "none.py"
    with pytest.raises(ValueError, match=r"returned int, not a torch\.nn\.Module"):
        models.build("none", **sizes)


# --- scripts ------------------------------------------------------------------------


def test_a_script_is_a_cell_of_its_own(folder):
    plan = read_plan_of(folder, SCRIPT + "topology: [1x1, 1x2]\nbatch_size: [8, 16]\n")
    found = {one.id: one.shape.global_batch for one in plan.cells.values()}
    assert found == {
        "train.gloo.1x1.batch_size=8": 8,
        "train.gloo.1x1.batch_size=16": 16,
        "train.gloo.1x2.batch_size=8": 16,
        "train.gloo.1x2.batch_size=16": 32,
    }
    cell = plan.cells["train.gloo.1x1.batch_size=8"].cell
    assert cell.is_base
    assert cell.script == {
        "args": "--batch {batch_size}",
        "samples_per_step": "batch_size * devices",
    }
    assert all(one.infeasible is None for one in plan.cells.values())


@pytest.mark.parametrize(("edit", "complaint"), read_pairs("refused_scripts.txt"))
def test_what_a_script_cannot_have_is_refused(folder, edit, complaint):
    key = edit.partition(":")[0]
    kept = [one for one in SCRIPT.splitlines() if one.partition(":")[0] != key]
    with pytest.raises(ValueError, match=complaint):
        read_experiment(folder, "\n".join([*kept, edit]))


def test_templates_are_filled_in():
    values = {"batch_size": 8, "devices": 4, "name": "a b"}
    words = fill_arguments("--b {batch_size} --n={name} '{{x}} y'", values)
    assert words == ["--b", "8", "--n=a b", "{x} y"]
    assert count_samples("batch_size * 3*devices", values) == 96
    assert count_samples("64", values) == 64


@pytest.mark.parametrize(
    ("name", "cell_id"),
    [
        ("train model.py", "train-model-"),
        ("train.v2.py", "train.v2.gloo."),
        ("ddp.py", "own-ddp.gloo."),
        ("modèle/train.py", "mod-le-train-"),
        ("a: b#{c}'.py", "a--b--c-"),
        (".hidden/my $(id).py", "hidden-my---id--"),
        ("a" * 200 + ".py", "a" * 39 + "-"),
    ],
)
def test_a_script_may_have_any_name(folder, name, cell_id):
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("")
    text = SCRIPT.replace("./train.py", json.dumps(f"./{name}"))
    plan = read_plan_of(folder, text)
    (planned,) = plan.cells.values()
    assert planned.id.startswith(cell_id)
    assert planned.cell.own_strategy is not None
    assert planned.cell.own_strategy["file"] == Path(name).name
    path = folder / "plan.json"
    path.write_bytes(plan.to_json())
    assert read_plan(path) == plan
    assert read_checked(path, "plan", version=PLAN_VERSION)


LAYOUT = {
    "tools/train.py": "import lib.words, helper\n",
    "tools/helper.py": "import deep\n",
    "lib/words.py": "",
    "lib/data/words.txt": "a",
    "lib/data/download.py": "import no_such_package\n",
    "deep.py": "",
    "pkg/__init__.py": "",
    "pkg/train.py": "from . import other\nimport lib.words\n",
    "pkg/other.py": "",
    "pkg/__main__.py": "from . import train\n",
    "unused.py": "",
}


@pytest.mark.parametrize(
    ("script", "files", "found"),
    [
        (
            "./tools/train.py",
            ["../lib/data"],
            ["deep.py", "lib/data/words.txt", "lib/words.py", "tools/helper.py"],
        ),
        ("-m pkg.train", ["lib/data"], ["lib/data/words.txt", "lib/words.py"]),
        ("-m pkg", [], ["lib/words.py", "pkg/__init__.py", "pkg/train.py"]),
    ],
)
def test_a_script_of_a_repository(tmp_path, script, files, found):
    for name, text in LAYOUT.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    text = SCRIPT.replace("./train.py", script) + f"files: {files}\n"
    experiment = read_experiment(tmp_path, text)
    ((_, own),) = experiment.own.files.items()
    assert set(found) < own.files.keys()
    assert "unused.py" not in own.files
    (cell,) = experiment.cells.values()
    assert cell.own_strategy is not None
    file = cell.own_strategy["file"]
    assert own.files[file] == own.path
    assert cell.own_strategy.get("module", "") in script
    (planned,) = read_plan_of(tmp_path, text).cells.values()
    assert planned.infeasible is None
    # A frozen copy, such as that of a bundle, is the same script.
    replay = tmp_path / "replay"
    freeze_files(replay / "own/0123456789abcdef", own.files, own.digest)
    named = f"./own/0123456789abcdef/{file}"
    if script.startswith("-m"):
        named = f"-m own/0123456789abcdef/{script[3:]}"
    start = "" if script.startswith("-m") else "../"
    files = [f"{start}lib/data"] if files else []
    again = SCRIPT.replace("./train.py", named) + f"files: {files}\n"
    (frozen,) = read_experiment(replay, again).cells.values()
    assert frozen.own_strategy == cell.own_strategy


def test_a_module_that_ranks_do_not_find_is_missing(folder, tmp_path, monkeypatch):
    place = tmp_path / "elsewhere"
    place.mkdir()
    (place / "only_here.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(place))
    monkeypatch.syspath_prepend(str(place))
    (folder / "train.py").write_text("import only_here\n")
    (planned,) = read_plan_of(folder, SCRIPT).cells.values()
    assert "train imports only_here, which is not installed here" in str(
        planned.infeasible
    )


def test_links_are_followed_and_runs_are_left_out(tmp_path):
    texts = ("train.py", "elsewhere/words/a.txt", ".git/x", "results/x/a", "logs/a")
    for name in texts:
        (tmp_path / "here" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "here" / name).write_text("")
    here = tmp_path / "here"
    (here / "elsewhere/words").rename(tmp_path / "words")
    (here / "elsewhere/words").symlink_to(tmp_path / "words")
    (here / "elsewhere/round").symlink_to(here)
    found = find_files(here / "train.py", ["."])
    assert list(found) == ["elsewhere/words/a.txt", "train.py"]


def test_data_among_the_files_of_a_script_is_refused(tmp_path):
    """Each launch would copy it; it is refused before anything reads it."""
    (tmp_path / "train.py").write_text("")
    with (tmp_path / "tokens.bin").open("wb") as file:
        file.truncate(300 * 2**20)
    with pytest.raises(ValueError, match=r"2 files of 300 MiB .* folder `data`"):
        find_files(tmp_path / "train.py", ["tokens.bin"])
