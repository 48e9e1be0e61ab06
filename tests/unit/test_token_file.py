"""Files of raw token ids: what planning says of them, and what ranks read."""

from __future__ import annotations

import array
import sys
from pathlib import Path

import pytest
import torch

from factories import read_experiment, read_pairs, read_plan_of
from rankbench.cell import Cell
from rankbench.rank import data, variants
from rankbench.rank.purposes.setup import load_material

pytestmark = pytest.mark.unit

GPT = "name: some\nstrategy: single\nmodel: gpt\ndata: "
IDS = GPT + "{tokens: {file: ./ids.bin, vocabulary: 300}}\n"
SHORT = "context: 16\nbatch_size: 4"


@pytest.fixture
def ids(tmp_path: Path) -> Path:
    return write_ids(tmp_path / "ids.bin", list(range(300)))


def write_ids(path: Path, ids: list[int], code: str = "H") -> Path:
    written = array.array(code, ids)
    if sys.byteorder == "big":
        written.byteswap()
    path.write_bytes(written.tobytes())
    return path


def only_cell(folder: Path, text: str) -> Cell:
    (cell,) = read_experiment(folder, text).cells.values()
    return cell


def test_a_cell_knows_the_file_by_its_digest(tmp_path, ids):
    before = only_cell(tmp_path, IDS + SHORT)
    own = before.own_files["data"]
    assert (own["file"], own["dtype"], own["vocabulary"]) == (
        "ids.bin",
        "uint16",
        "300",
    )
    write_ids(ids, [7, *range(1, 300)])
    assert only_cell(tmp_path, IDS + SHORT).hash() != before.hash()


@pytest.mark.parametrize(("dtype", "code"), [("uint16", "H"), ("uint32", "I")])
def test_ranks_read_the_file_as_it_is(tmp_path, dtype, code):
    """Sequences are cut one after the other, and the last ones are held out."""
    ids = [(31 * place) % 1000 for place in range(4 * 40 + 1)]
    file = write_ids(tmp_path / "ids.bin", ids, code)
    options = f"{{tokens: {{file: ./ids.bin, dtype: {dtype}, vocabulary: 1024}}}}"
    cell = only_cell(tmp_path, f"{GPT}{options}\ncontext: 4\nbatch_size: 4")
    variants.own["data", cell.data] = file
    material = load_material(cell, tmp_path)
    assert material.sizes == {"vocabulary": 1024, "context": 4}
    assert (len(material.train), len(material.test)) == (38, 2)
    rows = [*material.train, *material.test]
    assert torch.cat([inputs for inputs, _ in rows]).tolist() == ids[:-1]
    assert torch.cat([targets for _, targets in rows]).tolist() == ids[1:]


def test_the_file_is_not_read_as_a_whole(ids):
    arrays = data.TokenFile(ids, "uint16", 300).generate(context=16)
    assert not arrays.train.flags.owndata
    assert not arrays.train.flags.writeable


@pytest.mark.parametrize(("value", "says"), read_pairs("refused_tokens.txt"))
def test_a_wrong_file_is_refused(tmp_path, ids, value, says):
    write_ids(tmp_path / "short.bin", [1, 2])
    (tmp_path / "odd.bin").write_bytes(b"12345")
    write_ids(tmp_path / "head.bin", [55433, 1, 2, 3])
    with pytest.raises(ValueError, match=says):
        read_experiment(tmp_path, GPT + value)


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        (SHORT, None),
        ("context: 150", "ids has sequences of 149 tokens or less, not 150"),
        # 18 sequences of 16 tokens, one of which is held out.
        (
            "context: 16\nbatch_size: 18",
            "one step takes 18 samples, ids has 17 to train on",
        ),
    ],
)
def test_what_does_not_fit_the_file_is_infeasible(tmp_path, ids, keys, reason):
    (planned,) = read_plan_of(tmp_path, IDS + keys).cells.values()
    assert planned.infeasible == reason
