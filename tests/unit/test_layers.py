"""Blocks, overrides and published numbers of an experiment file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from factories import make_site, read_experiment
from rankbench.matrix.catalog import load_catalog
from rankbench.matrix.experiment import Experiment, load_experiment
from rankbench.matrix.plan import make_plan
from rankbench.plan import read_plan

pytestmark = pytest.mark.unit

STUDY = """
name: x
model: lenet
batch_size: 32
source: {title: a study, base: alone}
blocks:
  - strategy: single
    published: {label: alone, throughput: 332, memory_mib: [7885]}
  - strategy: ddp
    topology: 1x2
    published:
      - {label: two, throughput: 516, accuracy: 0.97, note: the log says 500}
      - {label: two again, throughput: 517}
  - {strategy: ddp, topology: [2x1, 4x1], batch_size: 16}
overrides:
  small: {batch_size: 8, topology: 1x2, launches: 2, epochs: null, steps: 5}
"""


def read(folder: Path, text: str, override: str | None) -> Experiment:
    path = folder / "experiment.yaml"
    path.write_text(text)
    return load_experiment(path, load_catalog(), cuda=False, override=override)


# --- bad input ----------------------------------------------------------------------


def with_block(block: str, top: str = "strategy: ddp") -> str:
    return f"name: x\n{top}\nblocks:\n  - {{topology: 1x1}}\n  - {block}\n"


def test_unknown_override(tmp_path):
    said = r"override 'smal': .* did you mean 'small'\?.*this file has: small"
    with pytest.raises(ValueError, match=said):
        read(tmp_path, STUDY, "smal")
    with pytest.raises(ValueError, match="this file has: none"):
        read(tmp_path, "name: x\nstrategy: ddp", "smal")


def test_an_override_that_makes_a_published_cell_many(tmp_path):
    text = STUDY + "  wide: {topology: [1x1, 1x2]}\n"
    with pytest.raises(
        ValueError, match="block 1: published: needs a block with one cell"
    ):
        read(tmp_path, text, "wide")


# --- good input ---------------------------------------------------------------------


def test_blocks_are_joined_in_their_order(tmp_path):
    cells = read_experiment(tmp_path, STUDY).cells
    assert list(cells) == [
        "single.none.1x1.lenet.digits.batch_size=32",
        "ddp.gloo.1x2.lenet.digits.batch_size=32",
        "ddp.gloo.2x1.lenet.digits.batch_size=16",
        "ddp.gloo.4x1.lenet.digits.batch_size=16",
    ]
    assert {cell.model for cell in cells.values()} == {"lenet"}
    cells = read_experiment(tmp_path, STUDY + "exclude: topology=2x1,4x1\n").cells
    assert [cell.topology for cell in cells.values()] == ["1x1", "1x2"]


def test_a_block_makes_the_cells_that_a_file_of_its_own_would(tmp_path):
    block = "strategy: [single, ddp]\nbackend: [gloo, mpi]\nseed: 3"
    alone = read_experiment(tmp_path, f"name: x\n{block}").cells
    text = "name: x\nseed: 1\nblocks:\n  - strategy: [single, ddp]\n"
    text += "    backend: [gloo, mpi]\n    seed: 3\n"
    assert read_experiment(tmp_path, text).cells == alone
    assert read_experiment(tmp_path, f"name: x\n{block}\nblocks: []").cells == alone


def test_a_cell_of_two_blocks_is_one_row(tmp_path):
    text = with_block("{topology: [1x2, 1x1]}")
    assert list(read_experiment(tmp_path, text).cells) == [
        "ddp.gloo.1x1.convnet.digits",
        "ddp.gloo.1x2.convnet.digits",
    ]


def test_published_rows_know_their_cells(tmp_path):
    experiment = read_experiment(tmp_path, STUDY)
    two = "ddp.gloo.1x2.lenet.digits.batch_size=32"
    assert experiment.study == {
        "source": {"title": "a study", "base": "alone"},
        "rows": [
            {
                "label": "alone",
                "throughput": 332,
                "memory_mib": [7885],
                "cell": "single.none.1x1.lenet.digits.batch_size=32",
            },
            {
                "label": "two",
                "throughput": 516,
                "accuracy": 0.97,
                "note": "the log says 500",
                "cell": two,
            },
            {"label": "two again", "throughput": 517, "cell": two},
        ],
    }


def test_published_rows_are_no_part_of_a_cell(tmp_path):
    text = with_block("{topology: 1x2}")
    plain = read_experiment(tmp_path, text).cells
    text = with_block("{topology: 1x2, published: {label: a, throughput: 1}}")
    assert (
        read_experiment(tmp_path, text + "source: {title: t, base: a}").cells == plain
    )
    # A row may have no numbers.
    text = with_block("{topology: 1x2, published: {label: a, note: a picture}}")
    study = read_experiment(tmp_path, text + "source: {title: t}").study
    assert study is not None
    assert [row["label"] for row in study["rows"]] == ["a"]


def test_an_override_replaces_keys_of_the_top_and_of_blocks(tmp_path):
    experiment = read(tmp_path, STUDY, "small")
    assert experiment.name == "x-small"
    assert experiment.override == "small"
    assert list(experiment.cells) == [
        "single.none.1x2.lenet.digits.batch_size=8",
        "ddp.gloo.1x2.lenet.digits.batch_size=8",
    ]
    assert experiment.values["launches"] == 2
    assert {cell.steps for cell in experiment.cells.values()} == {5}
    assert experiment.study is not None
    assert {row["cell"] for row in experiment.study["rows"]} == set(experiment.cells)
    # Without its name it changes nothing.
    with_it, without = (
        read(tmp_path, text, None) for text in (STUDY, STUDY.partition("overrides")[0])
    )
    assert (with_it.cells, with_it.name) == (without.cells, "x")


def test_the_plan_holds_the_study(tmp_path):
    experiment = read(tmp_path, STUDY, "small")
    plan = make_plan(
        experiment,
        make_site(),
        load_catalog(),
        code=lambda _: "c0de",
        source="experiment.yaml",
    )
    path = tmp_path / "plan.json"
    path.write_bytes(plan.to_json())
    assert read_plan(path) == plan
    header = json.loads(path.read_text())["experiment"]
    assert header["override"] == "small"
    assert header["study"] == experiment.study
