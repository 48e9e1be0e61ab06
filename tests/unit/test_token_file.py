"""Files of raw token ids: what planning says of them, and what ranks read."""

from __future__ import annotations

import array
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from factories import make_site
from rankbench.cell import Cell
from rankbench.matrix.catalog import load_catalog
from rankbench.matrix.experiment import Experiment, load_experiment
from rankbench.matrix.plan import make_plan
from rankbench.rank import data, variants
from rankbench.rank.purposes.setup import load_material

pytestmark = pytest.mark.unit

IDS = "{file: ./ids.bin, vocabulary: 300}"


def write_ids(path: Path, ids: list[int], code: str = "H") -> Path:
    written = array.array(code, ids)
    if sys.byteorder == "big":
        written.byteswap()
    path.write_bytes(written.tobytes())
    return path


def read(folder: Path, tokens: str, **more: Any) -> Experiment:
    path = folder / "some.yaml"
    lines = [f"{key}: {value}\n" for key, value in more.items()]
    path.write_text(
        "name: some\nstrategy: single\nmodel: gpt\n"
        f"data: {{tokens: {tokens}}}\n{''.join(lines)}"
    )
    return load_experiment(path, load_catalog(), cuda=False)


def cell_of(experiment: Experiment) -> Cell:
    (cell,) = experiment.cells.values()
    return cell


def why_not(experiment: Experiment) -> str | None:
    plan = make_plan(
        experiment,
        make_site(),
        load_catalog(),
        code=lambda _: "c0de",
        source="some.yaml",
    )
    (planned,) = plan.cells.values()
    return planned.infeasible


def test_a_cell_knows_the_file_by_its_digest(tmp_path):
    file = write_ids(tmp_path / "ids.bin", list(range(300)))
    first = read(tmp_path, IDS, context=16, batch_size=4)
    assert list(first.cells) == ["single.none.1x1.gpt.ids.context=16.batch_size=4"]
    before = cell_of(first)
    own = before.own_files["data"]
    assert own["file"] == "ids.bin"
    assert (own["dtype"], own["vocabulary"]) == ("uint16", "300")
    assert why_not(first) is None
    write_ids(file, [7, *range(1, 300)])
    after = cell_of(read(tmp_path, IDS, context=16, batch_size=4))
    assert after.hash() != before.hash()


@pytest.mark.parametrize(("dtype", "code"), [("uint16", "H"), ("uint32", "I")])
def test_ranks_read_the_file_as_it_is(tmp_path, dtype, code):
    """Sequences are cut one after the other, and the last ones are held out."""
    ids = [(31 * place) % 1000 for place in range(4 * 40 + 1)]
    file = write_ids(tmp_path / "ids.bin", ids, code)
    options = f"{{file: ./ids.bin, dtype: {dtype}, vocabulary: 1024}}"
    cell = cell_of(read(tmp_path, options, context=4, batch_size=4))
    variants.own["data", cell.data] = file
    material = load_material(cell, tmp_path)
    assert material.sizes == {"vocabulary": 1024, "context": 4}
    assert (len(material.train), len(material.test)) == (38, 2)
    rows = [*material.train, *material.test]
    assert torch.cat([inputs for inputs, _ in rows]).tolist() == ids[:-1]
    assert torch.cat([targets for _, targets in rows]).tolist() == ids[1:]


def test_the_file_is_not_read_as_a_whole(tmp_path):
    file = write_ids(tmp_path / "ids.bin", list(range(300)))
    arrays = data.TokenFile(file, "uint16", 300).generate(context=16)
    assert not arrays.train.flags.owndata
    assert not arrays.train.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        arrays.train[0, 0] = 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("{file: ./gone.bin, vocabulary: 9}", r"data.tokens: file: expected .*\*.bin"),
        ("{file: ./ids.npy, vocabulary: 9}", r"of ids.npy, `numpy.load"),
        ("{vocabulary: 9}", "file"),
        ("{file: ./ids.bin}", "vocabulary"),
        # The header of another tool: an id that no tokenizer has.
        ("{file: ./head.bin, vocabulary: 50257}", "has the id 55433: .* no header"),
        ("{file: ./ids.bin, dtype: int8, vocabulary: 9}", "uint16"),
        ("{file: ./ids.bin, vocabulary: 299}", "vocabulary 299, but the file has the"),
        (
            "{file: ./odd.bin, vocabulary: 9}",
            "5 bytes are no whole number of uint16 ids",
        ),
        ("{file: ./ids.bin, dtype: uint32, vocabulary: 9, words: 1}", "words"),
        ("{file: ./short.bin, vocabulary: 9}", "2 ids are too few"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path, options, says):
    write_ids(tmp_path / "ids.bin", list(range(300)))
    write_ids(tmp_path / "short.bin", [1, 2])
    (tmp_path / "odd.bin").write_bytes(b"12345")
    write_ids(tmp_path / "head.bin", [55433, 1, 2, 3])
    with pytest.raises(ValueError, match=says):
        read(tmp_path, options)


def test_a_context_longer_than_the_file_is_refused_with_the_numbers(tmp_path):
    write_ids(tmp_path / "ids.bin", list(range(300)))
    assert why_not(read(tmp_path, IDS, context=150)) == (
        "ids has sequences of 149 tokens or less, not 150"
    )
    # 18 sequences of 16 tokens, one of which is held out.
    assert why_not(read(tmp_path, IDS, context=16, batch_size=18)) == (
        "one step takes 18 samples, ids has 17 to train on"
    )


def test_only_tokens_take_options(tmp_path):
    path = tmp_path / "some.yaml"
    path.write_text("name: some\nstrategy: single\ndata: {digits: {file: x.bin}}\n")
    with pytest.raises(ValueError, match="data: only tokens takes options"):
        load_experiment(path, load_catalog(), cuda=False)
