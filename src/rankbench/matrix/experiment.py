"""Reads an experiment file: checks it, fills in defaults, and expands its cells."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rankbench.cell import Cell
from rankbench.matrix.catalog import NONE, Catalog, StrategyFacts
from rankbench.matrix.images import default_image
from rankbench.matrix.launches import read_budget, read_rule
from rankbench.matrix.layers import naming, read_layers, sweep_keys
from rankbench.matrix.own import OwnFiles, adopt
from rankbench.matrix.published import join_rows, make_study
from rankbench.matrix.schema import (
    Schema,
    check,
    did_you_mean,
    load_schema,
    with_defaults,
)
from rankbench.matrix.script import check_script, script_of
from rankbench.matrix.selection import Filter, select, spell_value

# Keys that have one value for the whole experiment. They are not part of a cell's id,
# but they are part of its hash, because they change the measurement.
PROTOCOL = ("epochs", "steps", "warmup", "evaluate")

# The keys that every id starts with. Options that differ from the defaults follow.
_ID = ("strategy", "backend", "topology", "model", "data")

DEFAULT_EPOCHS = 1
# The option that stands for several options of a model.
PRESET = "preset"
SRUN = "srun"
LONGEST_ID = 190


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
                found = _expand(
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


def _expand_strategies(
    entries: list[Any], catalog: Catalog
) -> list[tuple[StrategyFacts, dict[str, Any]]]:
    """Each strategy with each combination of its options: (facts, options)."""
    options = {name: facts.options for name, facts in catalog.strategies.items()}
    return [
        (catalog.strategies[name], resolved)
        for name, resolved in _expand_variants("strategy", entries, options)
    ]


def _expand_models(
    entries: list[Any], catalog: Catalog
) -> list[tuple[str, dict[str, Any]]]:
    """Each model with each combination of its options: (name, options)."""
    models = catalog.models.items()
    options = {name: facts["options"] for name, facts in models}
    # `build(**options)` takes what the experiment gives it.
    opened = {name for name, facts in models if facts.get("open")}
    presets = {name: facts["presets"] for name, facts in models if facts.get("presets")}
    return _expand_variants("model", entries, options, opened, presets)


def _check_data(entries: list[Any], catalog: Catalog) -> None:
    for name in entries:
        if name not in catalog.data:
            raise ValueError(
                f"data: {name!r} is not one of {', '.join(catalog.data)}"
                f"{did_you_mean(name, catalog.data)}"
            )


# An example of a name with options, for messages.
_EXAMPLES = {
    "strategy": "{ddp: {bucket_mb: [1, 25]}}",
    "model": "{emulated: {layers: [4, 8]}}",
}


def _expand_variants(
    key: str,
    entries: list[Any],
    known: Mapping[str, Mapping[str, Any]],
    opened: Collection[str] = (),
    presets: Mapping[str, Mapping[str, dict[str, Any]]] | None = None,
) -> list[tuple[str, dict[str, Any]]]:
    """Each variant with each combination of its options: (name, options).

    Args:
        key: of the experiment.
        entries: names, or one name with its options.
        known: name of a variant -> schema of each of its options.
        opened: names of variants that take options beyond the known ones.
        presets: name of a variant -> name of a preset -> values of its options.
    """
    expanded = []
    for entry in entries:
        if isinstance(entry, Mapping) and len(entry) == 1:
            ((name, options),) = entry.items()
        else:
            name, options = entry, {}
        if not isinstance(name, str):
            raise ValueError(
                f"{key}: expected a name, or one name with its options such as "
                f"{_EXAMPLES[key]}, got {entry!r}"
            )
        if name not in known:
            raise ValueError(
                f"{key}: {name!r} is not one of {', '.join(known)}"
                f"{did_you_mean(name, list(known))}"
            )
        given = {} if options is None else options
        place, more = f"{key}.{name}", name in opened
        preset = (presets or {}).get(name, {})
        for resolved in _expand_options(place, known[name], given, preset, opened=more):
            expanded.append((name, resolved))
    return expanded


def _expand_options(
    place: str,
    known: Mapping[str, Any],
    options: Mapping[str, Any],
    presets: Mapping[str, dict[str, Any]],
    *,
    opened: bool,
) -> Iterator[dict[str, Any]]:
    if not isinstance(options, Mapping):
        raise ValueError(f"{place}: expected options, got {options!r}")
    schema = {"type": "object", "additionalProperties": opened, "properties": known}
    lists = {k: v if isinstance(v, list) else [v] for k, v in options.items()}
    for option, values in lists.items():
        if not values:
            raise ValueError(
                f"{place}: {option}: expected at least one value, got an empty list"
            )
    choose_preset = {"properties": {PRESET: {"enum": list(presets)}}}
    for combination in itertools.product(*lists.values()):
        chosen = dict(zip(lists, combination, strict=True))
        if presets and PRESET in chosen:
            name = chosen.pop(PRESET)
            check({PRESET: name}, choose_preset, source=place)
            # What the experiment gives replaces what the preset says.
            chosen = {**presets[name], **chosen}
        check(chosen, schema, source=place)
        missing = [o for o in known if "default" not in known[o] and o not in chosen]
        if missing:
            raise ValueError(f"{place}: the option {missing[0]!r} is missing")
        more = {k: v for k, v in chosen.items() if k not in known}
        yield with_defaults(chosen, schema) | more


def _expand(
    values: dict[str, Any],
    protocol: Mapping[str, Any],
    schema: Schema,
    catalog: Catalog,
    own: OwnFiles,
    *,
    cuda: bool,
    slurm: bool,
) -> dict[str, Cell]:
    """The cells of one sweep: id -> cell."""
    script = script_of(values, protocol)
    if script is None:
        strategies = _expand_strategies(values["strategy"], catalog)
    else:
        strategies = [(catalog.strategies[n], {}) for n in values["script"]]
        values = {**values, "model": [NONE], "data": [NONE]}
    values = {**values, "model": _expand_models(values["model"], catalog)}
    _check_data(values["data"], catalog)
    sweeps = [k for k in sweep_keys(schema) if k not in ("strategy", "script")]
    cells: dict[str, Cell] = {}
    asked: set[tuple[str, str]] = set()
    for (facts, options), *point in itertools.product(
        strategies, *(values[name] for name in sweeps)
    ):
        chosen = dict(zip(sweeps, point, strict=True))
        chosen["model"], chosen["model_options"] = chosen["model"]
        chosen |= {"strategy": facts.name, "options": options}
        backend = chosen["backend"]
        if not facts.needs["backends"]:
            chosen["backend"] = facts.needs["own_backend"]
        launcher = choose_launcher(facts, chosen["backend"], slurm=slurm)
        if chosen["launcher"] == launcher:
            # Naming the automatic launcher must not change the cell's id.
            chosen["launcher"] = "auto"
        device = chosen["device"]
        if device == "auto":
            device = "cuda" if cuda else "cpu"
        if chosen["image"] == default_image(catalog.images, chosen["backend"], device):
            chosen["image"] = "auto"
        model = catalog.models[chosen["model"]]
        known = {**facts.options, **model["options"]}
        cell_id = _cell_id(chosen, known, schema, model.get("presets", {}))
        if (cell_id, backend) in asked:
            raise ValueError(f"the cell {cell_id} is listed twice")
        asked.add((cell_id, backend))
        if cell_id in cells:
            continue  # the same cell, because this strategy ignores the backend
        if chosen["launcher"] == "auto":
            chosen["launcher"] = launcher
        if chosen["context"] is None:
            # Only data sets of tokens have one.
            chosen["context"] = catalog.data[chosen["data"]].get("context")
        cell = Cell(**{**chosen, "device": device}, **protocol, **_own_of(chosen, own))
        if script is not None:
            cell = replace(cell, script=script)
            check_script(cell)
        cells[cell_id] = cell
    return cells


def _own_of(chosen: Mapping[str, Any], own: OwnFiles) -> dict[str, Any]:
    """The fields of a cell that say which files of the user's own it uses."""
    files = {kind: own.of_cell(kind, chosen[kind]) for kind in ("model", "data")}
    return {
        "own_files": {kind: file for kind, file in files.items() if file is not None},
        "own_strategy": own.of_cell("strategy", chosen["strategy"]),
    }


def choose_launcher(facts: StrategyFacts, backend: str, *, slurm: bool = False) -> str:
    """The launcher that `launcher: auto` means for a strategy over a backend."""
    own = facts.needs["launchers"]
    # oneCCL runs over Intel MPI, whose ranks cannot meet under srun.
    if slurm and backend != "ccl" and (not own or SRUN in own):
        return SRUN
    if own:
        return str(own[0])
    if backend == "none":
        # A process that joins no others needs no launcher, as in `python train.py`.
        return "manual"
    # Only an MPI launcher lets the ranks of an MPI job find each other.
    return "mpirun" if backend == "mpi" else "torchrun"


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


def _find_preset(
    options: Mapping[str, Any], presets: Mapping[str, Mapping[str, Any]]
) -> str | None:
    """The preset whose values a model's options all have."""
    return next(
        (
            name
            for name, values in presets.items()
            if all(options[option] == value for option, value in values.items())
        ),
        None,
    )


def _cell_id(
    chosen: Mapping[str, Any],
    options: Mapping[str, Any],
    schema: Schema,
    presets: Mapping[str, Mapping[str, Any]],
) -> str:
    """The readable id of a cell, unique within the experiment; it is also a path.

    Args:
        options: of its strategy and of its model -> schema.
        presets: of its model. The id names the one that its options agree with.
    """
    parts = [str(chosen[key]).replace("/", "-") for key in _ID]
    if parts[-2:] == [NONE, NONE]:
        del parts[-2:]  # A script brings its own model and data.
    usual = {option: rule.get("default") for option, rule in options.items()}
    preset = _find_preset(chosen["model_options"], presets)
    if preset is not None:
        parts.append(f"{PRESET}={preset}")
        usual |= presets[preset]
    for option, value in {**chosen["options"], **chosen["model_options"]}.items():
        if value != usual.get(option):
            parts.append(f"{option}={spell_value(value)}")
    for key, rule in schema["properties"].items():
        if key in chosen and key not in _ID and [chosen[key]] != rule["default"]:
            parts.append(f"{key}={spell_value(chosen[key])}")
    cell_id = ".".join(parts)
    if len(cell_id) <= LONGEST_ID:
        return cell_id
    # A file name has at most 255 bytes, and suffixes need some of them.
    digest = hashlib.sha256(cell_id.encode()).hexdigest()[:8]
    return f"{cell_id[:LONGEST_ID]}~{digest}"
