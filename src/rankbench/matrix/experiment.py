"""Reads an experiment file: checks it, fills in defaults, and expands its cells."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankbench.cell import Cell
from rankbench.matrix.catalog import Catalog
from rankbench.matrix.expansion import expand
from rankbench.matrix.layers import Block, keys_of, naming, read_layers
from rankbench.matrix.own import OwnFiles, adopt
from rankbench.matrix.schema import Schema, did_you_mean, load_schema
from rankbench.matrix.selection import Filter
from rankbench.stopping import BEST, FIRST_LOOK, UNTIL, Rule

DEFAULT_EPOCHS = 1


@dataclass(frozen=True)
class Experiment:
    """A checked experiment.

    Attributes:
        name: name of the result directory; ends with the override, if there is one.
        source: the experiment file.
        sha256: hash of the file.
        values: every key of the schema, with defaults for keys that the file omits.
        options: those of them that the plan passes on, because they change no cell.
        cells: id -> cell, in the order of the blocks and of their products.
        override: the override that was applied, or None.
        study: the key `source` of the file and its published rows, or None.
        own: models, data sets, strategies and scripts in files of the user's own.
    """

    name: str
    source: Path
    sha256: str
    values: dict[str, Any]
    options: dict[str, Any]
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
        ids: dict[str, str] = {}
        rows: list[dict[str, Any]] = []
        for block, chosen in zip(blocks, adopted, strict=True):
            with naming(block.place):
                found = expand(
                    chosen, protocol, schema, catalog, own, cuda=cuda, slurm=slurm
                )
                rows += join_rows(block, list(found))
                for cell_id, cell in found.items():
                    if cells.setdefault(cell_id, cell) != cell:
                        raise ValueError(
                            f"{cell_id} is another cell in an earlier block: give the "
                            "script another name, or write another experiment"
                        )
                    twin = ids.setdefault(cell.hash(), cell_id)
                    if twin != cell_id:
                        raise ValueError(f"{twin} and {cell_id} are the same cell here")
        cells = _exclude(cells, values["exclude"])
        study = make_study(values["source"], rows, cells)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    name = values["name"]
    options = {key: values[key] for key in keys_of(schema, "run")}
    return Experiment(name, path, digest, values, options, cells, override, study, own)


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


def _exclude(cells: dict[str, Cell], entries: list[str]) -> dict[str, Cell]:
    filters = []
    for entry in entries:
        with naming("exclude"):
            refused = Filter.parse(entry)
            refused.check(list(cells.values()))
            if not any(refused.accepts(cell) for cell in cells.values()):
                raise ValueError(f"no cell matches {entry!r}")
        filters.append(refused)
    left = {
        cell_id: cell
        for cell_id, cell in cells.items()
        if not any(refused.accepts(cell) for refused in filters)
    }
    if not left:
        raise ValueError(f"the matrix is empty: exclude removes all {len(cells)} cells")
    return left


_MOST = 1000


def read_rule(value: int | Mapping[str, Any]) -> Rule:
    """Read the key `launches`: a number, or such as ``{until: 3%, at_most: 40}``.

    Raises:
        ValueError: it is neither; says what is expected.
    """
    if isinstance(value, int):
        return Rule(value)
    known = (UNTIL, BEST, "at_most")
    for key in value:
        if key not in known:
            raise ValueError(
                f"launches: unknown key {key!r}{did_you_mean(key, known)} "
                f"(known keys: {', '.join(known)})"
            )
    kinds = [kind for kind in (UNTIL, BEST) if kind in value]
    if len(kinds) != 1:
        raise ValueError(f"launches: give {UNTIL} or {BEST}, one of them")
    at_most = value.get("at_most")
    if not isinstance(at_most, int) or not FIRST_LOOK <= at_most <= _MOST:
        raise ValueError(
            f"launches.at_most: expected an integer from {FIRST_LOOK} to {_MOST}, got "
            f"{at_most!r} (the launches are first looked at after {FIRST_LOOK}; for "
            "fewer, give a number: launches: 6)"
        )
    (kind,) = kinds
    return Rule(at_most, kind, _read_share(value[kind], f"launches.{kind}"))


def _read_share(value: object, key: str) -> float:
    """Read ``3%`` or ``0.03``."""
    text = str(value).strip()
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(%?)", text)
    share = float(match[1]) / (100 if match[2] else 1) if match else 0.0
    if not 0 < share < 1:
        raise ValueError(
            f"{key}: expected a share of more than 0 and less than 100 %, such as 3%, "
            f"got {value!r}"
        )
    return share


def read_budget(value: str | None) -> float | None:
    """Read the key `budget`: ``4 device-hours`` is 14400 device-seconds.

    Raises:
        ValueError: it is 0.
    """
    if value is None:
        return None
    hours = float(value.split()[0])
    if not hours > 0:
        raise ValueError(f"budget: expected more than 0 device-hours, got {value!r}")
    return 3600 * hours


# Keys of a published row that are text; all others are numbers.
_WORDS = ("label", "note")


def join_rows(block: Block, cells: Sequence[str]) -> list[dict[str, Any]]:
    """The published rows of a block, each with the id of the cell that repeats it.

    Args:
        block: a sweep.
        cells: the ids of its cells.

    Raises:
        ValueError: the block has rows, but not exactly one cell.
    """
    if block.published and len(cells) != 1:
        raise ValueError(
            f"published: needs a block with one cell, this block has {len(cells)}: "
            f"{', '.join(cells)}"
        )
    return [{**row, "cell": cells[0]} for row in block.published]


def make_study(
    source: Mapping[str, Any] | None,
    rows: Sequence[Mapping[str, Any]],
    cells: Mapping[str, Any],
) -> dict[str, Any] | None:
    """The source and its published rows, for the plan; None without a source.

    Raises:
        ValueError: there are rows without a source, a label appears twice, the cell of
            a row is excluded, or no row is named as the base of the comparison.
    """
    if source is None:
        if rows:
            raise ValueError(
                "the key 'source' is missing: it says where the published rows are from"
            )
        return None
    labels = [row["label"] for row in rows]
    for row in rows:
        if labels.count(row["label"]) > 1:
            raise ValueError(f"published: label {row['label']!r} appears twice")
        if row["cell"] not in cells:
            raise ValueError(f"exclude: {row['cell']} has published rows: keep it")
    base = source.get("base")
    if base is not None and base not in labels:
        raise ValueError(
            f"source: base: no published row has the label {base!r}"
            f"{did_you_mean(base, labels)}"
        )
    if base is None and any(row.keys() - {*_WORDS, "cell"} for row in rows):
        raise ValueError(
            "source: the key 'base' is missing: it is the label of the published row "
            "that the others are compared with"
        )
    return {"source": dict(source), "rows": [dict(row) for row in rows]}
