"""Experiment files: error messages, and the cells of valid files."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest

from factories import read_experiment
from rankbench.matrix import experiment as experiment_module
from rankbench.matrix.catalog import load_catalog
from rankbench.matrix.expansion import choose_launcher
from rankbench.matrix.experiment import load_experiment
from rankbench.matrix.schema import load_schema

pytestmark = pytest.mark.unit

BASE = "name: x\nstrategy: ddp\n"
SWEPT = "strategy: [single, ddp]\ntopology: [1x1, 1x2]\n"


# --- bad input ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        pytest.param(
            BASE + "topolgy: 1x1",
            "unknown key 'topolgy'; did you mean 'topology'? (known keys: name, ",
            id="misspelt key",
        ),
        pytest.param(
            BASE + "batch_size: many",
            "batch_size: expected integer, got string 'many'",
            id="wrong type",
        ),
        pytest.param(
            BASE + "launches: [6]",
            "launches: expected integer or object, got list [6]",
            id="list where one value stands",
        ),
        pytest.param(
            BASE + "batch_size: 64.0",
            "batch_size: expected integer, got number 64.0",
            id="integer with decimals",
        ),
        pytest.param(
            BASE + "time_limit: .inf",
            "time_limit: expected number, got number inf",
            id="infinite",
        ),
        pytest.param(
            BASE + "launches: 0", "launches: expected at least 1", id="no launches"
        ),
        pytest.param(
            BASE + "launches: {until: 0, at_most: 40}",
            "launches.until: expected a share of more than 0",
            id="until nothing",
        ),
        pytest.param(
            BASE + "launches: {until: 3%, at_most: 7}",
            "launches.at_most: expected an integer from 8 to 1000, got 7 ... "
            "for fewer, give a number",
            id="too few for a look",
        ),
        pytest.param(
            BASE + "launches: {until: 3%}",
            "launches.at_most: expected an integer from 8 to 1000, got None",
            id="until without a limit",
        ),
        pytest.param(
            BASE + "launches: {until: 3%, best: 3%, at_most: 40}",
            "launches: give until or best, one of them",
            id="two rules",
        ),
        pytest.param(
            BASE + "launches: {untill: 3%, at_most: 40}",
            "launches: unknown key 'untill'; did you mean 'until'?",
            id="misspelt rule",
        ),
        pytest.param(
            BASE + "launches: {best: 300%, at_most: 40}",
            "launches.best: expected a share",
            id="more than all",
        ),
        pytest.param(
            BASE + "budget: 4 hours",
            "budget: expected text like",
            id="hours of what",
        ),
        pytest.param(
            BASE + "budget: 0 device-hours",
            "budget: expected more than 0 device-hours",
            id="no budget",
        ),
        pytest.param(
            BASE + "momentum: 1", "momentum: expected less than 1", id="out of range"
        ),
        pytest.param(
            "name: x\nstrategy: sinlge",
            "strategy: 'sinlge' is not one of ... ; did you mean 'single'?",
            id="unknown strategy",
        ),
        pytest.param(
            BASE + "backend: ncll",
            "backend: 'ncll' is not one of gloo, mpi, nccl, ccl; did you mean 'nccl'?",
            id="unknown backend",
        ),
        pytest.param(
            BASE + "model: [convnet, resnet5]",
            "model: 'resnet5' is not one of ... ; did you mean 'resnet50'?",
            id="unknown model",
        ),
        pytest.param(
            BASE + "data: minst",
            "data: 'minst' is not one of ... ; did you mean 'mnist'?",
            id="unknown data",
        ),
        pytest.param(
            BASE + "launcher: torch_run",
            "launcher: 'torch_run' is not one of ... ; did you mean 'torchrun'?",
            id="unknown launcher",
        ),
        pytest.param(
            "name: x\nstrategy: {ddp: {bucket_bm: 1}}",
            "strategy.ddp: unknown key 'bucket_bm'; did you mean 'bucket_mb'? (",
            id="unknown option",
        ),
        pytest.param(
            "name: x\nstrategy: {single: {bucket_mb: 1}}",
            "strategy.single: unknown key 'bucket_mb' (",
            id="option of another strategy",
        ),
        pytest.param(
            "name: x\nstrategy: {ddp: {bucket_mb: [25, large]}}",
            "strategy.ddp: bucket_mb: expected number, got string 'large'",
            id="wrong option value",
        ),
        pytest.param(
            "name: x\nstrategy: {ddp: {bucket_mb: []}}",
            "strategy.ddp: bucket_mb: expected at least one value",
            id="empty list of an option",
        ),
        pytest.param(
            "name: x\nstrategy: {ddp: 25}",
            "strategy.ddp: expected options, got 25",
            id="value instead of options",
        ),
        pytest.param(
            "name: x\nstrategy: {ddp: false}",
            "strategy.ddp: expected options, got False",
            id="empty value instead of options",
        ),
        pytest.param(
            "name: x\nstrategy: {ddp: {}, single: {}}",
            "strategy: expected a name, or one name with its options such as",
            id="two strategies in one entry",
        ),
        pytest.param(
            "name: x\nstrategy: [[ddp]]", "strategy: expected a name", id="nested list"
        ),
        pytest.param(
            BASE + "topology: 2x",
            "topology: expected text like ^[1-9][0-9]*x[1-9][0-9]*$, got string '2x' "
            "(NODESxDEVICES",
            id="half a topology",
        ),
        pytest.param(
            BASE + "topology: 0x4",
            "topology: expected string, got integer 4 (NODESxDEVICES",
            id="topology that YAML reads as a number",
        ),
        pytest.param(
            BASE + "topology: '0x4'", "got string '0x4'", id="topology without a host"
        ),
        pytest.param(
            BASE + "model: []",
            "model: expected at least one value, got an empty list",
            id="empty list",
        ),
        pytest.param(
            "name: x\nstrategy: []",
            "strategy: expected at least one value",
            id="empty matrix",
        ),
        pytest.param(
            BASE + "topology: [1x1, 1x2, 1x1]",
            "topology: 1x1 listed twice",
            id="value twice",
        ),
        pytest.param(
            "name: x\nstrategy: [ddp, ddp]",
            "the cell ddp.gloo.1x1.convnet.digits is listed twice",
            id="strategy twice",
        ),
        pytest.param(
            "name: x\nstrategy: [single, single]",
            "the cell single.none.1x1.convnet.digits is listed twice",
            id="strategy without backend twice",
        ),
        pytest.param(
            "name: x\nstrategy: [ddp, {ddp: {bucket_mb: 25}}]",
            "the cell ddp.gloo.1x1.convnet.digits is listed twice",
            id="strategy and its default",
        ),
        pytest.param(
            "name: x\nstrategy: {ddp: {bucket_mb: [1, 25, 25.0]}}",
            "the cell ddp.gloo.1x1.convnet.digits is listed twice",
            id="one option value in two spellings",
        ),
        pytest.param(
            BASE + "model: {emulated: {mb: 4}}",
            "model.emulated: unknown key 'mb'; did you mean 'mib'?",
            id="option of a model",
        ),
        pytest.param(
            BASE + "model: {emulated: {layers: 0}}",
            "model.emulated: layers: ",
            id="value of a model's option",
        ),
        pytest.param(
            BASE + "model: {lenet: {layers: 2}}",
            "model.lenet: unknown key 'layers'",
            id="model without options",
        ),
        pytest.param(
            BASE + "model: [[lenet]]",
            "model: expected a name, or one name with its options such as {emulated",
            id="list as a model",
        ),
        pytest.param("name: [", "is not YAML: ", id="not YAML"),
        pytest.param(
            "- name: x",
            "expected keys with values at the top level, got list",
            id="list at the top",
        ),
        pytest.param(
            BASE + "name: y",
            "is not YAML: key 'name' appears twice",
            id="duplicate key",
        ),
        pytest.param(
            BASE + "epochs: 1\nsteps: 10",
            "epochs and steps: give one of them, not both",
            id="epochs and steps",
        ),
        pytest.param("strategy: ddp", "the key 'name' is missing", id="no name"),
        pytest.param("name: x", "the key 'strategy' is missing", id="no strategy"),
        pytest.param(
            "name: a/b\nstrategy: ddp", "name: expected text like", id="name with slash"
        ),
        pytest.param(
            "name: ..\nstrategy: ddp", "name: expected text like", id="name of a folder"
        ),
        pytest.param(
            BASE + "exclude: strategy=ddp",
            "the matrix is empty: exclude removes all 1 cells",
            id="everything excluded",
        ),
        pytest.param(
            BASE + "exclude: strtegy=ddp",
            "exclude: unknown key 'strtegy'; did you mean 'strategy'?",
            id="misspelt key in exclude",
        ),
        pytest.param(
            "name: x\n" + SWEPT + "exclude: strategy=sinlge",
            "exclude: no cell has strategy=sinlge (there are ddp, single); did you "
            "mean 'single'?",
            id="misspelt value in exclude",
        ),
        pytest.param(
            BASE + "exclude: strategy",
            "exclude: 'strategy' is not key=value",
            id="word",
        ),
    ],
)
def test_refused(tmp_path: Path, text: str, complaint: str) -> None:
    source = re.escape(str(tmp_path / "experiment.yaml"))
    with pytest.raises(ValueError, match=rf"^{source}: ") as caught:
        read_experiment(tmp_path, text)
    # "..." replaces a list of names that grows with each release.
    assert all(part in str(caught.value) for part in complaint.split(" ... "))


def test_file_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "missing.yaml"
    with pytest.raises(ValueError, match=rf"^{path}: cannot be read: "):
        load_experiment(path, load_catalog(), cuda=False)
    path.write_bytes(b"\x93NUMPY\x01\x00\xff")
    with pytest.raises(ValueError, match=rf"^{path}: cannot be read: "):
        load_experiment(path, load_catalog(), cuda=False)


def test_each_line_names_the_file(tmp_path: Path) -> None:
    text = "name: x\nstrategy: {ddp: {bucket_mb: 0, static_graph: 1}}"
    with pytest.raises(ValueError, match="bucket_mb") as caught:
        read_experiment(tmp_path, text)
    lines = str(caught.value).splitlines()
    assert len(lines) == 2
    assert all(line.startswith(str(tmp_path / "experiment.yaml: ")) for line in lines)


# --- good input ---------------------------------------------------------------------


def test_single_values_are_lists_of_one(tmp_path: Path) -> None:
    one = read_experiment(tmp_path, BASE + "batch_size: 32\nmodel: lenet")
    many = read_experiment(
        tmp_path, "name: x\nstrategy: [ddp]\nbatch_size: [32]\nmodel: [lenet]"
    )
    assert one.cells == many.cells
    assert one.values == many.values


def test_cells_stand_in_the_order_of_the_product(tmp_path: Path) -> None:
    text = "name: x\nmodel: [lenet, convnet]\n" + SWEPT
    assert list(read_experiment(tmp_path, text).cells) == [
        f"{strategy}.{topology}.{model}.digits"
        for strategy in ("single.none", "ddp.gloo")
        for topology in ("1x1", "1x2")
        for model in ("lenet", "convnet")
    ]


def test_options_are_swept_and_completed(tmp_path: Path) -> None:
    cells = read_experiment(
        tmp_path,
        "name: x\nstrategy: [single, {ddp: {bucket_mb: [1, 25], static_graph: true}}]",
    ).cells
    rules = load_catalog().strategies["ddp"].options
    defaults = {option: rule["default"] for option, rule in rules.items()}
    others = {**defaults, "static_graph": True}
    assert {cell_id: cell.options for cell_id, cell in cells.items()} == {
        "single.none.1x1.convnet.digits": {},
        "ddp.gloo.1x1.convnet.digits.bucket_mb=1.static_graph=true": {
            **others,
            "bucket_mb": 1,
        },
        "ddp.gloo.1x1.convnet.digits.static_graph=true": others,
    }
    assert defaults["bucket_mb"] == 25


def test_options_may_be_left_empty(tmp_path: Path) -> None:
    plain = read_experiment(tmp_path, "name: x\nstrategy: ddp").cells
    for entry in ("{ddp: }", "{ddp: {}}", "{ddp: {bucket_mb: 25}}"):
        assert read_experiment(tmp_path, f"name: x\nstrategy: {entry}").cells == plain


def test_ids_name_what_differs_from_the_defaults(tmp_path: Path) -> None:
    text = BASE + "seed: 3\nlearning_rate: [0.01, 0.1]\nprecision: fp32\nsteps: 5"
    assert list(read_experiment(tmp_path, text).cells) == [
        "ddp.gloo.1x1.convnet.digits.seed=3",
        "ddp.gloo.1x1.convnet.digits.learning_rate=0.1.seed=3",
    ]


def test_ids_are_unique_and_can_be_paths(tmp_path: Path) -> None:
    text = """
name: x
strategy: [single, dp, ddp, {ddp: {bucket_mb: [0.5, 1.0e-5], static_graph: true}}]
backend: [gloo, nccl]
topology: [1x1, 2x4]
image_size: [null, 32]
channels: [null, 3]
augment: [none, affine]
learning_rate: [0.1, 1.0e-6]
oversubscribe: [false, true]
"""
    experiment = read_experiment(tmp_path, text)
    # One strategy without a backend, with two values of an option; two with three
    # backends; six other keys with two values each.
    assert len(experiment.cells) == (2 * 1 + 3 * 2) * 2**6
    hashes = {cell.hash() for cell in experiment.cells.values()}
    assert len(hashes) == len(experiment.cells)
    for cell_id in experiment.cells:
        assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._=-]*", cell_id)


def test_cells_without_communication_merge(tmp_path: Path) -> None:
    text = "name: x\nstrategy: [single, ddp]\nbackend: [gloo, mpi, nccl]"
    assert list(read_experiment(tmp_path, text).cells) == [
        "single.none.1x1.convnet.digits",
        "ddp.gloo.1x1.convnet.digits",
        "ddp.mpi.1x1.convnet.digits",
        "ddp.nccl.1x1.convnet.digits",
    ]


@pytest.mark.parametrize(
    ("text", "epochs", "steps", "evaluate"),
    [
        ("", 1, None, True),
        ("epochs: 3", 3, None, True),
        ("steps: 20", None, 20, False),
        ("steps: 20\nevaluate: true", None, 20, True),
        ("epochs: 3\nevaluate: false", 3, None, False),
        ("steps: 20\nevaluate: auto", None, 20, False),
    ],
)
def test_protocol(
    tmp_path: Path, text: str, epochs: int | None, steps: int | None, evaluate: bool
) -> None:
    (cell,) = read_experiment(tmp_path, BASE + text).cells.values()
    assert (cell.epochs, cell.steps, cell.evaluate) == (epochs, steps, evaluate)


@pytest.mark.parametrize(
    ("text", "cuda", "device"),
    [
        ("", False, "cpu"),
        ("", True, "cuda"),
        ("device: cpu", True, "cpu"),
        ("device: cuda", False, "cuda"),
    ],
)
def test_device(tmp_path: Path, text: str, cuda: bool, device: str) -> None:
    (cell,) = read_experiment(tmp_path, BASE + text, cuda=cuda).cells.values()
    assert cell.device == device


def test_id_does_not_depend_on_the_machine(tmp_path: Path) -> None:
    here, there = (read_experiment(tmp_path, BASE, cuda=c) for c in (False, True))
    assert here.cells.keys() == there.cells.keys()


def test_exclude_takes_any_of_its_entries(tmp_path: Path) -> None:
    text = "name: x\n" + SWEPT
    text += "exclude: ['strategy=ddp topology=1x1', 'topology=1x2 strategy=single']"
    assert list(read_experiment(tmp_path, text).cells) == [
        "single.none.1x1.convnet.digits",
        "ddp.gloo.1x2.convnet.digits",
    ]


def test_another_spelling_of_a_default_is_the_same_cell(tmp_path: Path) -> None:
    (plain,) = read_experiment(tmp_path, BASE).cells.values()
    text = "name: x\nstrategy: {ddp: {bucket_mb: 25.0}}\nweight_decay: 0"
    (spelled,) = read_experiment(tmp_path, text).cells.values()
    assert spelled.hash() == plain.hash()


def test_gpudirect_as_yaml_spells_it(tmp_path: Path) -> None:
    cells = read_experiment(tmp_path, BASE + "gpudirect: [auto, on, off]").cells
    start = "ddp.gloo.1x1.convnet.digits"
    assert {name: cell.gpudirect for name, cell in cells.items()} == {
        start: "auto",
        f"{start}.gpudirect=true": True,
        f"{start}.gpudirect=false": False,
    }


def test_name_launches_and_texts_are_no_part_of_a_cell(tmp_path: Path) -> None:
    (one,) = read_experiment(tmp_path, BASE).cells.values()
    other = "name: y\nstrategy: ddp\nlaunches: 9\ntime_limit: 5\ndescription: d"
    other += "\nbackend_logs: true"
    (two,) = read_experiment(tmp_path, other).cells.values()
    assert one.hash() == two.hash()


@pytest.mark.parametrize(
    ("key", "value"),
    [("learning_rate", [0.02]), ("warmup", 11), ("augment", ["affine"])],
)
def test_changing_a_default_changes_the_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, value: Any
) -> None:
    before = read_experiment(tmp_path, BASE).cells
    changed = copy.deepcopy(load_schema("experiment"))
    assert changed["properties"][key]["default"] != value
    changed["properties"][key]["default"] = value
    monkeypatch.setattr(
        experiment_module, "load_schema", lambda _name: copy.deepcopy(changed)
    )
    after = read_experiment(tmp_path, BASE).cells
    assert after.keys() == before.keys()
    assert all(after[c].hash() != before[c].hash() for c in before)


def test_the_experiments_of_the_project_are_good() -> None:
    root = Path(__file__).resolve().parents[2]
    for path in [root / "config.yaml", *root.glob("studies/*.yaml")]:
        assert load_experiment(path, load_catalog(), cuda=False).cells


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            BASE + "topology: [1x1, 1x2]\nmodel: [lenet, convnet]\n"
            "exclude: ['topology=1x1 model=lenet', 'topology=1x1 strategy=ddp', "
            "'topology=1x2 data=digits batch_size=64 seed=1']\n",
            "no cell has seed=1",
        ),
        (
            "name: x\nstrategy: [single, {ddp: {bucket_mb: 1}}]\n"
            "exclude: ['strategy=single backend=gloo']\n",
            "no cell matches 'strategy=single backend=gloo'",
        ),
        (BASE + "device: [auto, cpu]\n", "are the same cell here"),
        ("name: |\n  x\nstrategy: ddp\n", "name: expected text like"),
        (BASE + "channels: 1.0\n", "channels: expected"),
    ],
)
def test_refused_too(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(complaint)):
        read_experiment(tmp_path, text)


def test_a_learning_rate_may_be_written_as_a_power(tmp_path: Path) -> None:
    experiment = read_experiment(tmp_path, BASE + "learning_rate: [1e-3, 1E+1]\n")
    rates = [cell.learning_rate for cell in experiment.cells.values()]
    assert rates == [0.001, 10.0]


def test_a_long_id_is_cut_and_stays_unique(tmp_path: Path) -> None:
    text = BASE + (
        "image_size: 224\nchannels: 3\naugment: affine\nbatch_size: 1024\n"
        "scaling: strong\noptimizer: adamw\nlearning_rate: 0.0012345\n"
        "weight_decay: 0.0012345\nprecision: bf16\nnum_workers: 16\n"
        "pin_memory: true\nnon_blocking: true\nseed: [1234567, 1234568]\n"
    )
    ids = list(read_experiment(tmp_path, text).cells)
    assert len(ids) == 2
    assert all(len(cell_id) <= 200 for cell_id in ids)
    assert all(cell_id.startswith("ddp.gloo.1x1.convnet.digits.") for cell_id in ids)


def test_auto_is_srun_where_there_is_slurm() -> None:
    known = load_catalog().strategies

    def auto(strategy: str, backend: str, *, slurm: bool) -> str:
        return choose_launcher(known[strategy], backend, slurm=slurm)

    assert auto("ddp", "gloo", slurm=False) == "torchrun"
    assert auto("ddp", "gloo", slurm=True) == "srun"
    # A single process needs no rendezvous.
    assert auto("single", "none", slurm=False) == "manual"
    assert auto("single", "none", slurm=True) == "srun"
    assert auto("ddp", "mpi", slurm=False) == "mpirun"
    assert auto("ddp", "mpi", slurm=True) == "srun"
    assert auto("horovod", "mpi", slurm=False) == "horovodrun"
    assert auto("horovod", "mpi", slurm=True) == "srun"
    assert auto("horovod", "ccl", slurm=True) == "horovodrun"
    # The launcher that a strategy brings along is part of what is measured.
    assert auto("deepspeed", "gloo", slurm=True) == "deepspeed"


def test_a_launcher_that_is_what_auto_means_makes_no_other_cell(tmp_path: Path) -> None:
    auto = read_experiment(tmp_path, "name: a\nstrategy: ddp\n")
    said = read_experiment(tmp_path, "name: a\nstrategy: ddp\nlauncher: torchrun\n")
    assert auto.cells == said.cells
    with pytest.raises(ValueError, match="is listed twice"):
        read_experiment(
            tmp_path, "name: a\nstrategy: ddp\nlauncher: [auto, torchrun]\n"
        )


def test_options_of_a_model_are_swept(tmp_path: Path) -> None:
    text = (
        "name: x\nstrategy: ddp\nmodel: [lenet, {emulated: {mib: [4, 8], layers: 2}}]"
    )
    cells = read_experiment(tmp_path, text).cells
    assert list(cells) == [
        "ddp.gloo.1x1.lenet.digits",
        "ddp.gloo.1x1.emulated.digits.layers=2",
        "ddp.gloo.1x1.emulated.digits.layers=2.mib=8",
    ]
    lenet, small, large = cells.values()
    assert lenet.model_options == {}
    assert large.model_options == {
        "layers": 2,
        "mib": 8,
        "forward_us": 500,
        "backward_us": 1000,
    }
    # Another option is another workload, and another cell.
    assert len({small.hash(), large.hash(), lenet.hash()}) == 3
    assert small.workload() != large.workload()
