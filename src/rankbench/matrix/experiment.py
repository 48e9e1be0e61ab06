"""Reads an experiment file: checks it, fills in defaults, and expands its cells."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankbench.cell import Cell
from rankbench.matrix.catalog import Catalog
from rankbench.matrix.expansion import expand
from rankbench.matrix.launches import read_budget, read_rule
from rankbench.matrix.layers import naming, read_layers
from rankbench.matrix.own import OwnFiles, adopt
from rankbench.matrix.published import join_rows, make_study
from rankbench.matrix.schema import Schema, load_schema
from rankbench.matrix.selection import Filter, select

# Keys that have one value for the whole experiment. They are not part of a cell's id,
# but they are part of its hash, because they change the measurement.
PROTOCOL = ("epochs", "steps", "warmup", "evaluate")

DEFAULT_EPOCHS = 1


@dataclass(frozen=True)
class Experiment:
    """A checked experiment.

    Attributes:
        name: name of the result directory; ends with the override, if there is one.
        source: the experiment file.
        sha256: hash of the file.
        values: every key of the schema, with defaults for keys that the file omits.
        cells: id -> cell, in the order of the blocks and of their products.
        override: the override that was applied, or None.
        study: the key `source` of the file and its published rows, or None.
        own: models, data sets, strategies and scripts in files of the user's own.
    """

    name: str
    source: Path
    sha256: str
    values: dict[str, Any]
    cells: dict[str, Cell]
    override: str | None = None
    study: dict[str, Any] | None = None
    own: OwnFiles = field(default_factory=OwnFiles)


def load_experiment(
    path: Path,
    catalog: Catalog,
    *,
    cuda: bool,
    slurm: bool = False,
    override: str | None = None,
) -> Experiment:
    """Read, check and expand an experiment file.

    Args:
        path: the YAML file.
        catalog: the variants that exist.
        cuda: whether `device: auto` means cuda on this site.
        slurm: whether `launcher: auto` may mean srun on this site.
        override: the name of one of the file's overrides, or None.

    Raises:
        ValueError: the file has mistakes; the message has a line for each.
    """
    schema = experiment_schema(catalog)
    values, blocks = read_layers(path, schema, override)
    with naming(str(path)):
        protocol = _read_protocol(values)
        values["launches"] = read_rule(values["launches"]).to_json()
        values["budget"] = read_budget(values["budget"])
        adopted, own = adopt([b.values for b in blocks], catalog, path.parent)
        catalog = catalog.with_own(own.facts())
        cells: dict[str, Cell] = {}
        rows: list[dict[str, Any]] = []
        for block, chosen in zip(blocks, adopted, strict=True):
            with naming(block.place):
                found = expand(
                    chosen, protocol, schema, catalog, own, cuda=cuda, slurm=slurm
                )
                rows += join_rows(block, list(found))
                _check_ids(cells, found)
                cells |= found
                _check_twins(cells)
        cells = _exclude(cells, values["exclude"])
        study = make_study(values["source"], rows, cells)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    name = values["name"]
    return Experiment(name, path, digest, values, cells, override, study, own)


def experiment_schema(catalog: Catalog) -> Schema:
    """The schema of an experiment, with the names of all variants in the catalog."""
    schema = load_schema("experiment")
    properties = schema["properties"]
    properties["launcher"]["items"]["enum"] = ["auto", *catalog.launchers]
    properties["image"]["items"]["enum"] = ["auto", *catalog.images]
    return schema


def _read_protocol(values: Mapping[str, Any]) -> dict[str, Any]:
    steps, epochs = values["steps"], values["epochs"]
    if steps is not None and epochs is not None:
        raise ValueError("epochs and steps: give one of them, not both")
    if steps is None and epochs is None:
        epochs = DEFAULT_EPOCHS
    evaluate = values["evaluate"]
    return {
        "epochs": epochs,
        "steps": steps,
        "warmup": values["warmup"],
        "evaluate": epochs is not None if evaluate == "auto" else evaluate,
    }


def _check_ids(cells: Mapping[str, Cell], more: Mapping[str, Cell]) -> None:
    """Refuse two cells with one id, of which only one would be measured."""
    for cell_id, cell in more.items():
        if cell_id in cells and cells[cell_id] != cell:
            raise ValueError(
                f"{cell_id} is another cell in an earlier block: give the script "
                "another name, or write another experiment"
            )


def _check_twins(cells: Mapping[str, Cell]) -> None:
    ids: dict[str, str] = {}
    for cell_id, cell in cells.items():
        twin = ids.setdefault(cell.hash(), cell_id)
        if twin != cell_id:
            raise ValueError(f"{twin} and {cell_id} are the same cell here")


def _exclude(cells: dict[str, Cell], entries: list[str]) -> dict[str, Cell]:
    filters = []
    for entry in entries:
        try:
            one = Filter.parse(entry)
            one.check(list(cells.values()))
            if not any(one.accepts(cell) for cell in cells.values()):
                raise ValueError(f"no cell matches {entry!r}")
        except ValueError as error:
            raise ValueError(f"exclude: {error}") from error
        filters.append(one)
    gone = select(list(cells.values()), filters)
    left = {
        cell_id: cell
        for (cell_id, cell), out in zip(cells.items(), gone, strict=True)
        if not out
    }
    if not left:
        raise ValueError(f"the matrix is empty: exclude removes all {len(cells)} cells")
    return left
