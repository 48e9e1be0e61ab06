"""Experiment files: error messages, and the cells of valid files."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from factories import read_experiment, read_pairs, read_plan_of
from rankbench.cell import OF_PLACE, find_bases
from rankbench.matrix.catalog import load_catalog
from rankbench.matrix.expansion import choose_launcher

pytestmark = pytest.mark.unit

BASE = "name: x\nstrategy: ddp\n"
SWEPT = "strategy: [single, ddp]\ntopology: [1x1, 1x2]\n"


# --- bad input ----------------------------------------------------------------------


@pytest.mark.parametrize(("text", "complaint"), read_pairs("refused_experiments.txt"))
def test_refused(tmp_path, text, complaint):
    head = "name: x\n" if text.startswith("strategy") else BASE
    refuse(tmp_path, head + text, complaint)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("strategy: ddp", "the key 'name' is missing"),
        ("name: x", "the key 'strategy' is missing"),
        ("name: x\nblocks: [{model: lenet}]", "block 1: the key 'strategy' is missing"),
        ("name: a/b\nstrategy: ddp", "name: expected text like"),
        ("name: ..\nstrategy: ddp", "name: expected text like"),
        ("name: |\n  x\nstrategy: ddp\n", "name: expected text like"),
    ],
)
def test_a_whole_file_is_refused(tmp_path, text, complaint):
    refuse(tmp_path, text, complaint)


def refuse(folder: Path, text: str, complaint: str) -> None:
    """The message names the file; "..." replaces words of no matter."""
    source = re.escape(str(folder / "experiment.yaml"))
    with pytest.raises(ValueError, match=rf"^{source}(:\d+)?: ") as caught:
        read_experiment(folder, text)
    assert all(part in str(caught.value) for part in complaint.split(" ... "))


def test_each_mistake_names_its_line(tmp_path):
    text = (
        "name: x\nstrategy:\n  - single\n  - ddp:\n      bucket_mb: 0\n"
        "      static_graph: 1\n"
    )
    assert lines_of_mistakes(tmp_path, text) == {5: "strategy.ddp", 6: "strategy.ddp"}
    text = (
        "name: x\nstrategy: ddp\ntopology:\n  - 1x1\n  - 2x\nlaunchs: 3\n"
        "env: [{A: 1}, {B: [1]}]\nsource:\n  title: t\n  ulr: u\n"
    )
    found = {5: "topology", 6: "'launchs'", 7: "env.B", 10: "'ulr'"}
    assert lines_of_mistakes(tmp_path, text) == found
    blocks = (
        "name: x\nblocks:\n  - &a {strategy: ddp}\n  - <<: *a\n    seed: x\n"
        "  - <<: *a\n    model: nett\n  - strategy: ddp\n    seed: [0, 1]\n"
        "backend: gloo\noverrides:\n  small:\n    seed: y\n"
    )
    # A seed that is wrong -> the line that says so.
    for seeds, mistake in [
        (("y", "x"), {13: "overrides.small"}),
        (("1", "x"), {5: "block"}),
        (("1", "2"), {7: "block"}),
    ]:
        text = blocks.replace("seed: y", f"seed: {seeds[0]}")
        text = text.replace("seed: x", f"seed: {seeds[1]}")
        assert lines_of_mistakes(tmp_path, text) == mistake


def test_all_wrong_names_are_said_at_once(tmp_path):
    text = (
        "name: x\nstrategy:\n  - sinlge\n  - ddp: {bucket_bm: 1}\n"
        "model:\n  - nett\n  - emulated: {layers: [0, 1, two]}\n  - ./absnet\n"
        "data: minst\nimage: glo\nenv: {RANK: 1}\n"
    )
    found = {3: "strategy", 4: "'bucket_bm'", 6: "model", 7: "model.emulated"}
    found |= {8: "model", 9: "data", 10: "image", 11: "env.RANK"}
    assert lines_of_mistakes(tmp_path, text) == found
    text = (
        "name: x\nstrategy: ddp\nblocks:\n  - model: nett\n  - data: minst\n"
        "  - model:\n    - ./a.py\n    - ./b.py\n"
    )
    found = {4: "block", 5: "block", 7: "block"}
    assert lines_of_mistakes(tmp_path, text) == found


def lines_of_mistakes(folder: Path, text: str) -> dict[int, str]:
    """Line -> the key that the message names there."""
    with pytest.raises(ValueError, match=r"experiment.yaml:\d+: ") as caught:
        read_experiment(folder, text)
    found = {}
    for said in str(caught.value).splitlines():
        line, key = re.findall(
            r"experiment.yaml:(\d+): (?:.*unknown key )?(\S+)", said
        )[0]
        found[int(line)] = key.rstrip(":;")
    return found


# --- good input ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "strategy: [ddp]\nmodel: [convnet]",
        "strategy: {ddp: }",
        "strategy: {ddp: {}}",
        "strategy: {ddp: {bucket_mb: 25.0}}\nweight_decay: 0",
        "strategy: ddp\nlauncher: torchrun",  # It is what auto means here.
        # No part of a cell.
        "strategy: ddp\nlaunches: 9\ntime_limit: 5\ndescription: d\nbackend_logs: true",
    ],
)
def test_another_spelling_makes_the_same_cells(tmp_path, text):
    plain = read_experiment(tmp_path, BASE).cells
    assert read_experiment(tmp_path, f"name: y\n{text}\n").cells == plain


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        # The order is that of the product.
        (
            "model: [lenet, convnet]\n" + SWEPT,
            [
                f"{strategy}.{topology}{model}"
                for strategy in ("single.none", "ddp.gloo")
                for topology in ("1x1", "1x2")
                for model in (".lenet.digits", "")
            ],
        ),
        # What differs from the defaults is named.
        (
            "strategy: ddp\nseed: 3\nlearning_rate: [0.01, 0.1]\nsteps: 5",
            ["ddp.gloo.1x1.seed=3", "ddp.gloo.1x1.learning_rate=0.1.seed=3"],
        ),
        (
            "strategy: ddp\ngpudirect: [auto, true, false]",
            [f"ddp.gloo.1x1{x}" for x in ("", ".gpudirect=true", ".gpudirect=false")],
        ),
        # Cells without communication merge.
        (
            "strategy: [single, ddp]\nbackend: [gloo, mpi]",
            ["single.none.1x1", "ddp.gloo.1x1", "ddp.mpi.1x1"],
        ),
        # Any entry of `exclude` is enough.
        (
            f"{SWEPT}exclude: ['strategy=ddp topology=1x1', 'topology=1x2 "
            "strategy=single']",
            ["single.none.1x1", "ddp.gloo.1x2"],
        ),
    ],
)
def test_cells_and_their_ids(tmp_path, text, ids):
    """Without the default model and data."""
    cells = read_experiment(tmp_path, f"name: x\n{text}\n").cells
    assert [name.replace(".convnet.digits", "") for name in cells] == ids


def test_options_are_swept_and_completed(tmp_path):
    cells = read_experiment(
        tmp_path,
        "name: x\nstrategy: [single, {ddp: {bucket_mb: [1, 25], static_graph: true}}]",
    ).cells
    rules = load_catalog().strategies["ddp"]["options"]
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


def test_ids_are_unique_and_can_be_paths(tmp_path):
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


@pytest.mark.parametrize(
    ("text", "epochs", "steps", "evaluate"),
    [
        ("", 1, None, True),
        ("epochs: 3", 3, None, True),
        ("steps: 20", None, 20, False),
        ("steps: 20\nevaluate: true", None, 20, True),
        ("epochs: 3\nevaluate: false", 3, None, False),
        ("steps: 20\nevaluate: auto", None, 20, False),
        ("steps: 20\ntarget: {accuracy: 0.9}", None, 20, True),
    ],
)
def test_protocol(tmp_path, text, epochs, steps, evaluate):
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
def test_device(tmp_path, text, cuda, device):
    (found,) = read_experiment(tmp_path, BASE + text, cuda=cuda).cells.items()
    assert found[1].device == device
    # The id does not depend on the machine.
    assert [found[0]] == [*read_experiment(tmp_path, BASE + text, cuda=not cuda).cells]


def test_a_long_id_is_cut_and_stays_unique(tmp_path):
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
def test_what_auto_means_as_a_launcher(strategy, backend, plain, with_slurm):
    facts = load_catalog().strategies[strategy]
    assert choose_launcher(facts, backend) == plain
    assert choose_launcher(facts, backend, "srun") == with_slurm


def test_options_of_a_model_are_swept(tmp_path):
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


def test_a_learning_rate_may_follow_the_global_batch(tmp_path):
    text = (
        "name: x\nstrategy: [single, ddp]\ntopology: [1x1, 1x2]\nbatch_size: 32\n"
        "learning_rate: [0.01, {per_sample: 0.0001}]\nexclude:\n"
        "  - strategy=single topology=1x2\n"
        "  - strategy=ddp topology=1x1 per_sample=0.0001\n"
        "  - per_sample=0.0001 scaling=weak strategy=single\n"
        "  - learning_rate=0.01\n"
    )
    plan = read_plan_of(tmp_path, text)
    (planned,) = plan.cells.values()
    assert planned.id == "ddp.gloo.1x2.convnet.digits.batch_size=32.per_sample=0.0001"
    trained = planned.cell.at_rate(planned.shape.global_batch)
    assert trained.learning_rate == pytest.approx(0.0064)
    assert trained.at_rate(7) == trained
    # Cells of other topologies train by the same rule.
    other = dataclasses.replace(planned.cell, topology="1x1")
    assert other.apart_from(OF_PLACE) == planned.cell.apart_from(OF_PLACE)


def test_partitions_are_swept_and_not_compared(tmp_path):
    text = "name: x\nstrategy: [single, ddp]\npartition: [null, gpu]\n"
    cells = read_experiment(tmp_path, text).cells
    single, ddp = "single.none.1x1.convnet.digits", "ddp.gloo.1x1.convnet.digits"
    assert find_bases(cells) == {
        single: (single, single),
        f"{single}.partition=gpu": (f"{single}.partition=gpu",) * 2,
        ddp: (single, single),
        f"{ddp}.partition=gpu": (f"{single}.partition=gpu",) * 2,
    }
    # The key makes no cell stale that was measured before it existed.
    plain = read_experiment(tmp_path, "name: x\nstrategy: single\n").cells
    assert plain[single].hash() == cells[single].hash()


def test_variables_are_swept_and_part_of_the_cell(tmp_path):
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
    single, base = "single.none.1x1.convnet.digits", list(cells)[1]
    # Of an efficiency, with the same variables, if there is one.
    alone = [single, base, single, single, base]
    assert [*find_bases(cells).values()] == [(single, one) for one in alone]
    assert cells[base].env == {"OMP_SCHEDULE": "4"}
    assert len({cell.hash() for cell in cells.values()}) == 5
    assert len({cell.workload() for cell in cells.values()}) == 1


def test_all_settings_of_a_model_compete_and_have_one_base(tmp_path):
    text = (
        "name: x\nstrategy: [single, ddp]\ntopology: [1x1, 1x2]\n"
        "model: [convnet, lenet]\nbatch_size: [32, 64]\n"
        "precision: [fp32, bf16]\ncompile: [false, true]\n"
        "exclude: [strategy=single topology=1x2, strategy=ddp topology=1x1]\n"
    )
    cells = read_experiment(tmp_path, text).cells
    assert len({cell.workload() for cell in cells.values()}) == 2
    for name, (speedup, efficiency) in find_bases(cells).items():
        assert speedup is not None
        assert efficiency is not None
        first, alone = cells[speedup], cells[efficiency]
        found = first.strategy, first.model, first.precision, first.batch_size
        assert found == ("single", cells[name].model, "fp32", 32)
        for key in ("precision", "compile", "batch_size"):
            assert alone.settings[key] == cells[name].settings[key]
