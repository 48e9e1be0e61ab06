"""The cells of a sweep, and their ids."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from rankbench.cell import Cell
from rankbench.matrix.catalog import Catalog, default_image
from rankbench.matrix.declarations import NONE, StrategyFacts
from rankbench.matrix.layers import sweep_keys
from rankbench.matrix.own import OwnFiles
from rankbench.matrix.schema import Schema, check, did_you_mean, with_defaults
from rankbench.matrix.selection import spell_value
from rankbench.templates import (
    count_samples,
    fill_arguments,
    names_in,
    placeholders,
    values_of,
)

# The keys that every id starts with. Options that differ from the defaults follow.
_ID = ("strategy", "backend", "topology", "model", "data")
LONGEST_ID = 190
SRUN = "srun"


def expand(
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
        strategies = expand_strategies(values["strategy"], catalog)
    else:
        strategies = [(catalog.strategies[n], {}) for n in values["script"]]
        values = {**values, "model": [NONE], "data": [NONE]}
    values = {**values, "model": expand_models(values["model"], catalog)}
    check_data(values["data"], catalog)
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


# The option that stands for several options of a model.
PRESET = "preset"


def expand_strategies(
    entries: list[Any], catalog: Catalog
) -> list[tuple[StrategyFacts, dict[str, Any]]]:
    """Each strategy with each combination of its options: (facts, options)."""
    options = {name: facts.options for name, facts in catalog.strategies.items()}
    return [
        (catalog.strategies[name], resolved)
        for name, resolved in _expand_variants("strategy", entries, options)
    ]


def expand_models(
    entries: list[Any], catalog: Catalog
) -> list[tuple[str, dict[str, Any]]]:
    """Each model with each combination of its options: (name, options)."""
    models = catalog.models.items()
    options = {name: facts["options"] for name, facts in models}
    # `build(**options)` takes what the experiment gives it.
    opened = {name for name, facts in models if facts.get("open")}
    presets = {name: facts["presets"] for name, facts in models if facts.get("presets")}
    return _expand_variants("model", entries, options, opened, presets)


def check_data(entries: list[Any], catalog: Catalog) -> None:
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


# Keys that matter to a script without being arguments of it: they say where it runs.
_OF_PLACE = {
    *("backend", "topology", "launcher", "init_method", "gpudirect", "image"),
    *("device", "cores_per_device", "oversubscribe"),
}


def script_of(
    values: Mapping[str, Any], protocol: Mapping[str, Any]
) -> dict[str, str] | None:
    """The templates of the script in one sweep; None if it has none.

    Args:
        values: key -> list of its values, or one value.
        protocol: steps, epochs, and whether the model is evaluated.

    Raises:
        ValueError: a key is missing, or has no meaning for a script.
    """
    if not values["script"]:
        for key in ("args", "files"):
            if values[key]:
                raise ValueError(f"{key}: is for a script, and there is none")
        return None
    if values["strategy"]:
        raise ValueError(
            "script and strategy: give one of them (a script brings its own strategy)"
        )
    if protocol["steps"] is None:
        raise ValueError("script: the key 'steps' is missing: how many are timed")
    if values["samples_per_step"] is None:
        raise ValueError(
            "script: the key 'samples_per_step' is missing: a number, or an "
            "expression such as batch_size * devices"
        )
    expression = str(values["samples_per_step"])
    used = placeholders(values["args"]) | names_in(expression)
    for key, given in values.items():
        several = isinstance(given, list) and len(given) > 1
        if several and key not in used | _OF_PLACE | {"script", "files"}:
            raise ValueError(
                f"{key}: has several values, but args does not pass {{{key}}} on"
            )
    return {"args": values["args"], "samples_per_step": expression}


def check_script(cell: Cell) -> None:
    """Fill in the templates of a cell, to see that this works.

    Raises:
        ValueError: an argument or the number of samples cannot be filled in.
    """
    assert cell.script is not None
    values = values_of(cell)
    fill_arguments(cell.script["args"], values)
    count_samples(cell.script["samples_per_step"], values)
