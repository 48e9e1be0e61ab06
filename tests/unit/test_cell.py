"""Topologies, and the identity of a cell."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from factories import make_cell, make_shape
from rankbench import cell as cell_module
from rankbench.cell import NOT_DEFAULT, Cell, Shape, Topology, is_lossy

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "sizes"), [("1x1", (1, 1, 1)), ("10x16", (10, 16, 160))]
)
def test_topology(text, sizes):
    found = Topology.parse(text)
    assert (found.nodes, found.devices_per_node, found.devices) == sizes


@pytest.mark.parametrize(
    "text", ["", "2x", "x2", "0x4", "4x0", "2X4", "2x4x1", "-1x2", "01x2", "2x4\n"]
)
def test_topology_refuses(text):
    with pytest.raises(ValueError, match="is not NODESxDEVICES"):
        Topology.parse(text)


def test_cell_survives_json():
    """The order of options does not count."""
    cell = make_cell(options={"bucket_mb": 1, "static_graph": True})
    again = Cell.from_dict(json.loads(json.dumps(cell.to_dict())))
    other = make_cell(options={"static_graph": True, "bucket_mb": 1})
    assert again == cell == other
    assert again.hash() == cell.hash() == other.hash()
    values = cell.to_dict()
    values["colour"] = values.pop("seed")
    with pytest.raises(ValueError, match=r"missing \['seed'\], unknown \['colour'\]"):
        Cell.from_dict(values)
    shape = make_shape(2, nodes=2, ranks_per_node=1)
    assert Shape(**json.loads(json.dumps(shape.to_dict()))) == shape


OTHER: dict[str, Any] = {"options": {"bucket_mb": 1}, "epochs": 2, "steps": 3}


@pytest.mark.parametrize("name", [f.name for f in dataclasses.fields(Cell)])
def test_every_field_is_part_of_the_hash(name):
    other = OTHER.get(name, f"other than {getattr(make_cell(), name)}")
    assert dataclasses.replace(make_cell(), **{name: other}).hash() != (
        make_cell().hash()
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [("cudnn_benchmark", True), ("fused_optimizer", True), ("clip_gradients", 1.0)],
)
def test_records_stay_valid_when_cells_get_new_fields(name, value):
    """A cell that was written without the field has the same value and hash."""
    cell = make_cell()
    before = {key: one for key, one in cell.to_dict().items() if key != name}
    assert Cell.from_dict(before) == cell
    assert dataclasses.replace(cell, **{name: value}).hash() != cell.hash()
    # Computed by the version that did not have these fields.
    assert cell.hash() == "5526bce74dab523d"


def test_hash_is_the_same_in_every_process_of_a_version(monkeypatch):
    # A golden value: if it changes, every record that exists becomes stale. The options
    # of strategies, which become more, are not in it.
    assert make_cell(strategy="any").hash() == "8ab0b1288a9f5193"
    monkeypatch.setattr(cell_module, "CELL_VERSION", cell_module.CELL_VERSION + 1)
    assert make_cell(strategy="any").hash() != "8ab0b1288a9f5193"


@pytest.mark.parametrize(
    ("approximate", "lossy"),
    [
        ({}, []),
        ({"period": [2, 4]}, [2, 4]),
        ({"period": NOT_DEFAULT}, [2, 3, 4, 1000]),
        ({"period": [], "other": NOT_DEFAULT}, []),
    ],
)
def test_lossy_values_are_listed_or_all_but_the_default(approximate, lossy):
    options = {
        "period": {"type": "integer", "default": 1},
        "other": {"type": "boolean", "default": False},
    }
    found = [
        period
        for period in (1, 2, 3, 4, 1000)
        if is_lossy({"period": period, "other": False}, approximate, options)
    ]
    assert found == lossy
