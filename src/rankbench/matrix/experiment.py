"""Reads an experiment file: checks it, fills in defaults, and expands its cells.

Its layers are merged: its top level, its blocks, and an override.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rankbench.cell import LONGEST_ID, Cell, safe_name
from rankbench.matrix.catalog import Catalog
from rankbench.matrix.expansion import expand
from rankbench.matrix.own import OwnFiles, adopt
from rankbench.matrix.selection import find_matching
from rankbench.matrix.site import check_images
from rankbench.schema import (
    Schema,
    check,
    did_you_mean,
    gather,
    in_file,
    keys_of,
    load_schema,
    load_yaml,
    naming,
    with_defaults,
)

DEFAULT_EPOCHS = 1
# The value of `hosts` with which every cell runs on every host by itself.
EACH = "each"


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
        hosts: those of ``hosts: each`` -> why it is not up, or None.
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
    hosts: Mapping[str, str | None] = field(default_factory=dict)


def load_experiment(
    path: Path,
    catalog: Catalog,
    *,
    cuda: bool,
    preferred: str | None = None,
    override: str | None = None,
    list_hosts: Callable[[], Mapping[str, str | None]] = dict,
) -> Experiment:
    """Read, check and expand an experiment file.

    Args:
        path: the YAML file.
        catalog: the variants that exist.
        cuda: whether `device: auto` means cuda on this site.
        preferred: what `launcher: auto` means on this site, where it is possible.
        override: the name of one of the file's overrides, or None.
        list_hosts: gives the hosts of the site, for ``hosts: each``, and why they are
            not up.

    Raises:
        ValueError: the file has mistakes; the message has a line for each.
    """
    schema = experiment_schema(catalog)
    given = load_yaml(path)
    cells: dict[str, Cell] = {}
    hosts: Mapping[str, str | None] = {}
    ids: dict[str, str] = {}
    rows: list[dict[str, Any]] = []
    own = OwnFiles()
    with in_file(path, override=override):
        values, blocks = read_layers(given, schema, override)
        protocol = _read_protocol(values)
        if (budget := values["budget"]) is not None:
            # `4 device-hours` is 14400 device-seconds.
            values["budget"] = 3600 * float(budget.split()[0])
            if not values["budget"] > 0:
                raise ValueError(
                    f"budget: expected more than 0 device-hours, got {budget!r}"
                )
        check_images(values["images"], "images")
        catalog = catalog.with_images(values["images"])
        with gather() as each:
            for block in blocks:
                with each(), naming(block.place):
                    chosen = adopt(block.values, catalog, path.parent, own)
                    known = catalog.with_own(own.facts())
                    found = expand(
                        *(chosen, protocol, schema, known, own),
                        cuda=cuda,
                        preferred=preferred,
                    )
                    if block.published and len(found) != 1:
                        raise ValueError(
                            "published: needs a block with one cell, this block has "
                            f"{len(found)}: {', '.join(found)}"
                        )
                    # The published rows of a block are those of its cell.
                    cell_id = next(iter(found))
                    rows += [{**row, "cell": cell_id} for row in block.published]
                    for cell_id, cell in found.items():
                        if cells.setdefault(cell_id, cell) != cell:
                            raise ValueError(
                                f"{cell_id} is another cell in an earlier block: give "
                                "the script another name, or write another experiment"
                            )
                        twin = ids.setdefault(cell.hash(), cell_id)
                        if twin != cell_id:
                            raise ValueError(
                                f"{twin} and {cell_id} are the same cell here"
                            )
        if values["hosts"] == EACH:
            hosts = list_hosts()
            cells = _pin(cells, [*hosts])
        cells = _exclude(cells, values["exclude"])
        study = make_study(values["source"], rows, cells)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    name = values["name"]
    options = {key: values[key] for key in keys_of(schema, "run")}
    about = (override, study, own, hosts)
    return Experiment(name, path, digest, values, options, cells, *about)


def experiment_schema(catalog: Catalog) -> Schema:
    """The schema of an experiment, with the names of all variants in the catalog."""
    schema = load_schema("experiment")
    properties = schema["properties"]
    properties["launcher"]["items"]["enum"] = ["auto", *catalog.launchers]
    rules = load_schema("site")["properties"]["images"]
    properties["images"] = {**rules, **properties["images"]}
    options: dict[str, list[str]] = {}
    # The plainest strategy that has the option comes first.
    for name, facts in sorted(
        catalog.strategies.items(), key=lambda pair: len(pair[1]["options"])
    ):
        for option in facts["options"]:
            options.setdefault(option, []).append(name)
    # Options that people give as keys of the experiment.
    schema["x-elsewhere"] = {
        option: f"; it is an option of {', '.join(names)}: "
        f"strategy: {{{names[0]}: {{{option}: ...}}}}"
        for option, names in options.items()
    }
    return schema


def _read_protocol(values: Mapping[str, Any]) -> dict[str, Any]:
    steps, epochs = values["steps"], values["epochs"]
    if steps is not None and epochs is not None:
        raise ValueError("epochs and steps: give one of them, not both")
    if steps is None and epochs is None:
        epochs = DEFAULT_EPOCHS
    evaluate, needed = values["evaluate"], "accuracy" in (values["target"] or {})
    if evaluate is False and needed:
        raise ValueError("target: accuracy is not measured with evaluate: false")
    return {
        "epochs": epochs,
        "steps": steps,
        "warmup": values["warmup"],
        "evaluate": epochs is not None or needed if evaluate == "auto" else evaluate,
    }


def _pin(cells: Mapping[str, Cell], hosts: Sequence[str]) -> dict[str, Cell]:
    """Each cell on each of the hosts."""
    if not hosts:
        raise ValueError("hosts: each: this site lists no hosts: it needs Slurm")
    for name, cell in cells.items():
        if cell.size.nodes > 1:
            raise ValueError(f"hosts: each: {name} has several hosts: choose topology")
    return {
        safe_name(f"{name}.hosts={host}", LONGEST_ID): replace(cell, hosts=host)
        for name, cell in cells.items()
        for host in hosts
    }


def _exclude(cells: dict[str, Cell], entries: list[Any]) -> dict[str, Cell]:
    refused: set[str] = set()
    for entry in entries:
        with naming("exclude"):
            refused |= find_matching(cells, entry)
    if len(refused) == len(cells):
        raise ValueError(f"the matrix is empty: exclude removes all {len(cells)} cells")
    return {name: cell for name, cell in cells.items() if name not in refused}


# Keys of a published row that are text; all others are numbers.
_WORDS = ("label", "note")


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


# Keys that an override cannot replace.
_FIXED = ("name", "blocks", "overrides", "source")


@dataclass(frozen=True)
class Block:
    """One sweep.

    Attributes:
        place: name of the block in errors: ``block 3``; empty if the file has none.
        values: key that is swept -> list of its values; and keys of a block.
        published: rows of the source that the cell of this block repeats.
    """

    place: str
    values: dict[str, Any]
    published: Sequence[dict[str, Any]] = field(default_factory=list)


def read_layers(
    given: Mapping[str, Any], schema: Schema, override: str | None
) -> tuple[dict[str, Any], list[Block]]:
    """Check the layers of an experiment file and apply an override.

    Args:
        given: what the file says.
        schema: schema of an experiment.
        override: the name of one of the file's overrides, or None.

    Returns:
        The values of all keys, and the sweeps, of which each block is one.

    Raises:
        ValueError: a key of the file is wrong, or there is no such override.
    """
    given = _with_lists(given, schema)
    # All keys except those within blocks, for which errors name the block.
    properties = dict(schema["properties"])
    properties["blocks"] = {**properties["blocks"], "items": {}}
    required = [
        key
        for key in schema["required"]
        if key != "strategy" or not (given.get("blocks") or given.get("script"))
    ]
    top_level = {**schema, "properties": properties, "required": required}
    check(given, top_level)
    overrides = _read_overrides(given, schema)
    if override is not None and override not in overrides:
        raise ValueError(
            f"override {override!r}: there is no such override"
            f"{did_you_mean(override, overrides)} "
            f"(this file has: {', '.join(overrides) or 'none'})"
        )
    replaced = {} if override is None else overrides[override]
    top = {**given, **replaced}
    values = with_defaults(top, schema)
    name = values["name"] if override is None else f"{values['name']}-{override}"
    values["name"] = safe_name(name)
    keys = (*keys_of(schema), *keys_of(schema, "block"))
    swept = {"properties": {key: schema["properties"][key] for key in keys}}
    if not values["blocks"]:
        return values, [Block("", with_defaults(top, swept))]
    rule = schema["properties"]["blocks"]["items"]
    of_block = {**swept["properties"], **rule["properties"]}
    whole = {**schema, **rule, "properties": of_block, "required": []}
    blocks = []
    with gather() as each:
        for number, entry in enumerate(given["blocks"], 1):
            place = f"block {number}"
            with each(), naming(place):
                if not isinstance(entry, Mapping):
                    raise ValueError(f"expected keys with values, got {entry!r}")
                block = _with_lists(entry, whole)
                check(block, whole)
                published = block.pop("published", [])
                merged = {**top, **block, **replaced}
                if not merged.get("strategy") and not merged.get("script"):
                    raise ValueError("the key 'strategy' is missing")
                blocks.append(Block(place, with_defaults(merged, swept), published))
    return values, blocks


def _read_overrides(
    given: Mapping[str, Any], schema: Schema
) -> dict[str, dict[str, Any]]:
    """All overrides of the file by name; each is checked, even if it is not used."""
    properties = schema["properties"]
    allowed = {key: rule for key, rule in properties.items() if key not in _FIXED}
    rules = {**schema, "properties": allowed, "required": []}
    overrides = {}
    for name, keys in given.get("overrides", {}).items():
        check({"name": name}, {"properties": properties}, source="overrides")
        overrides[name] = _with_lists(keys, schema)
        check(overrides[name], rules, source=f"overrides.{name}")
    return overrides


def _with_lists(given: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """Turn a single value into a list of one, for keys that take a list."""
    rules = schema["properties"]
    lists = {key for key in given if rules.get(key, {}).get("type") == "array"}
    return {
        key: [value] if key in lists and not isinstance(value, list) else value
        for key, value in given.items()
    }
