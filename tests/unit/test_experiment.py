"""Experiment files: error messages, and the cells of valid files."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest

from factories import read_experiment
from rankbench.cell import find_base
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
        ("topolgy: 1x1", "'topolgy'; did you mean 'topology'? (known keys: name, "),
        ("batch_size: many", "batch_size: expected integer, got string 'many'"),
        ("launches: [6]", "launches: expected integer or object, got list [6]"),
        ("batch_size: 64.0", "batch_size: expected integer, got number 64.0"),
        ("time_limit: .inf", "time_limit: expected number, got number inf"),
        ("launches: 0", "launches: expected at least 1"),
        ("launches: {until: 0, at_most: 40}", "launches.until: expected a share"),
        (
            "launches: {until: 3%, at_most: 7}",
            "launches.at_most: ... 8 to 1000 ... give a number",
        ),
        (
            "launches: {until: 3%}",
            "launches.at_most: expected an integer from 8 to 1000",
        ),
        ("launches: {until: 3%, best: 3%, at_most: 40}", "give until or best"),
        ("launches: {untill: 3%, at_most: 40}", "launches: ... did you mean 'until'?"),
        ("launches: {best: 300%, at_most: 40}", "launches.best: expected a share"),
        ("budget: 4 hours", "budget: expected text like"),
        ("budget: 0 device-hours", "budget: expected more than 0 device-hours"),
        ("momentum: 1", "momentum: expected less than 1"),
        ("env: {RANK: 1}", "env.RANK: rankbench sets this variable itself; remove it"),
        ("env: {NCCL_DEBUG: WARN}", "env.NCCL_DEBUG: ... backend_logs"),
        ("env: {NCCL_ALGO: [Ring, Tree]}", "env.NCCL_ALGO: expected string or number"),
        ("env: {OMP_DYNAMIC: true}", "env.OMP_DYNAMIC: expected string or number"),
        ('env: {"A=B": 1}', "env: expected text like ^[A-Za-z_]"),
        ("env: [{}, {}]", "env: {} listed twice"),
        ("strategy: sinlge", "strategy: 'sinlge' ... did you mean 'single'?"),
        ("backend: ncll", "backend: 'ncll' is not one of gloo, ... 'nccl'?"),
        ("model: [convnet, resnet5]", "model: 'resnet5' ... did you mean 'resnet50'?"),
        ("data: minst", "data: 'minst' ... did you mean 'mnist'?"),
        ("launcher: torch_run", "launcher: 'torch_run' ... did you mean 'torchrun'?"),
        (
            "strategy: {ddp: {bucket_bm: 1}}",
            "strategy.ddp: ... did you mean 'bucket_mb'? (",
        ),
        (
            "strategy: {single: {bucket_mb: 1}}",
            "strategy.single: unknown key 'bucket_mb' (",
        ),
        ("strategy: {ddp: {bucket_mb: [25, large]}}", "bucket_mb: expected number"),
        ("strategy: {ddp: {bucket_mb: []}}", "strategy.ddp: bucket_mb: expected"),
        ("strategy: {ddp: 25}", "strategy.ddp: expected options, got 25"),
        ("strategy: {ddp: false}", "strategy.ddp: expected options, got False"),
        ("strategy: {ddp: {}, single: {}}", "strategy: expected a name, or"),
        ("strategy: [[ddp]]", "strategy: expected a name"),
        ("topology: 2x", "topology: expected ... '2x' (NODESxDEVICES"),
        ("topology: 0x4", "topology: expected string, got integer 4 (NODESx"),
        ("topology: '0x4'", "got string '0x4'"),
        ("model: []", "model: expected at least one value"),
        ("strategy: []", "strategy: expected at least one value"),
        ("topology: [1x1, 1x2, 1x1]", "topology: 1x1 listed twice"),
        ("strategy: [ddp, ddp]", "ddp.gloo.1x1.convnet.digits is listed twice"),
        ("strategy: [single, single]", "none.1x1.convnet.digits is listed twice"),
        (
            "strategy: [ddp, {ddp: {bucket_mb: 25}}]",
            "ddp.gloo.1x1.convnet.digits is listed twice",
        ),
        (
            "strategy: {ddp: {bucket_mb: [1, 25, 25.0]}}",
            "ddp.gloo.1x1.convnet.digits is listed twice",
        ),
        ("model: {emulated: {mb: 4}}", "model.emulated: ... did you mean 'mib'?"),
        ("model: {emulated: {layers: 0}}", "model.emulated: layers: "),
        ("model: {lenet: {layers: 2}}", "model.lenet: unknown key 'layers'"),
        ("model: [[lenet]]", "model: expected a name, or ... {emulated"),
        ("name: y", "is not YAML: key 'name' appears twice"),
        ("epochs: 1\nsteps: 10", "epochs and steps: give one of them, not both"),
        ("exclude: strategy=ddp", "exclude removes all 1 cells"),
        ("exclude: strtegy=ddp", "exclude: ... did you mean 'strategy'?"),
        (f"{SWEPT}exclude: strategy=sinlge", "(there are ddp, single); ... 'single'?"),
        ("exclude: strategy", "exclude: 'strategy' is not key=value"),
        ("exclude: ['strategy=ddp model=convnet seed=1']", "no cell has seed=1"),
        (
            f"{SWEPT}exclude: strategy=single backend=gloo",
            "no cell matches 'strategy=si",
        ),
        ("device: [auto, cpu]", "are the same cell here"),
        ("channels: 1.0", "channels: expected"),
    ],
)
def test_refused(tmp_path: Path, text: str, complaint: str) -> None:
    head = "name: x\n" if text.startswith("strategy") else BASE
    refuse(tmp_path, head + text, complaint)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("name: [", "is not YAML: "),
        ("- name: x", "expected keys with values at the top level, got list"),
        ("strategy: ddp", "the key 'name' is missing"),
        ("name: x", "the key 'strategy' is missing"),
        ("name: a/b\nstrategy: ddp", "name: expected text like"),
        ("name: ..\nstrategy: ddp", "name: expected text like"),
        ("name: |\n  x\nstrategy: ddp\n", "name: expected text like"),
    ],
)
def test_a_whole_file_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    refuse(tmp_path, text, complaint)


def refuse(folder: Path, text: str, complaint: str) -> None:
    """The message names the file; "..." replaces words of no matter."""
    source = re.escape(str(folder / "experiment.yaml"))
    with pytest.raises(ValueError, match=rf"^{source}: ") as caught:
        read_experiment(folder, text)
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


@pytest.mark.parametrize(
    ("strategy", "backend", "plain", "with_slurm"),
    [
        ("ddp", "gloo", "torchrun", "srun"),
        # A single process needs no rendezvous.
        ("single", "none", "manual", "srun"),
        ("ddp", "mpi", "mpirun", "srun"),
        ("horovod", "mpi", "horovodrun", "srun"),
        ("horovod", "ccl", "horovodrun", "horovodrun"),
        # The launcher that a strategy brings along is part of what is measured.
        ("deepspeed", "gloo", "deepspeed", "deepspeed"),
    ],
)
def test_what_auto_means_as_a_launcher(
    strategy: str, backend: str, plain: str, with_slurm: str
) -> None:
    facts = load_catalog().strategies[strategy]
    assert choose_launcher(facts, backend) == plain
    assert choose_launcher(facts, backend, slurm=True) == with_slurm


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


def test_variables_are_swept_and_part_of_the_cell(tmp_path: Path) -> None:
    text = (
        "name: x\nstrategy: [single, ddp]\n"
        "env: [{}, {NCCL_PROTO: LL128, NCCL_ALGO: Ring}, {OMP_SCHEDULE: 4}]\n"
        "exclude: strategy=single NCCL_ALGO=Ring\n"
    )
    cells = read_experiment(tmp_path, text).cells
    assert [cell_id.removeprefix("single.none.1x1.") for cell_id in cells] == [
        "convnet.digits",
        "convnet.digits.OMP_SCHEDULE=4",
        "ddp.gloo.1x1.convnet.digits",
        "ddp.gloo.1x1.convnet.digits.NCCL_ALGO=Ring.NCCL_PROTO=LL128",
        "ddp.gloo.1x1.convnet.digits.OMP_SCHEDULE=4",
    ]
    bases = [find_base(cell_id, cells) for cell_id in cells]
    single, base = "single.none.1x1.convnet.digits", list(cells)[1]
    # With the same variables, if there is one.
    assert bases == [single, base, single, single, base]
    assert cells[base].env == {"OMP_SCHEDULE": "4"}
    assert len({cell.hash() for cell in cells.values()}) == 5
    assert len({cell.workload() for cell in cells.values()}) == 1
