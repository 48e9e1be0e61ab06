"""The cells of a sweep, and their ids."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from rankbench.cell import (
    LONGEST_ID,
    OF_QUEUE,
    Cell,
    name_options,
    safe_name,
    spell_value,
)
from rankbench.matrix.catalog import Catalog, default_image
from rankbench.matrix.declarations import NONE
from rankbench.matrix.own import LIBRARIES, OF_TORCHVISION, OwnFiles
from rankbench.matrix.site import read_env
from rankbench.own_files import (
    count_samples,
    fill_arguments,
    names_in,
    placeholders,
    values_of,
)
from rankbench.schema import (
    Schema,
    check,
    did_you_mean,
    gather,
    keys_of,
    with_defaults,
)

# Names of strategies or models, with their options.
Variants = list[tuple[str, dict[str, Any]]]

# The keys that every id starts with. Options that differ from the defaults follow.
_ID = ("strategy", "backend", "topology", "model", "data")


def expand(
    values: dict[str, Any],
    protocol: Mapping[str, Any],
    schema: Schema,
    catalog: Catalog,
    own: OwnFiles,
    *,
    cuda: bool,
    preferred: str | None,
) -> dict[str, Cell]:
    """The cells of one sweep: id -> cell."""
    script = script_of(values, protocol)
    if script is not None:
        values = {**values, "model": [NONE], "data": [NONE]}
    strategies: Variants = [(name, {}) for name in values["script"]]
    models: Variants = []
    with gather() as each:
        for key, found in (("strategy", strategies), ("model", models)):
            for entry in values[key]:
                with each():
                    found += expand_variant(key, entry, catalog)
        for key in ("data", "image"):
            for name in values[key]:
                with each():
                    _check_name(key, name, catalog)
        with each():
            envs = [read_env(given) for given in values["env"]]
    sweeps = {key: values[key] for key in keys_of(schema)}
    sweeps |= {"model": models, "env": envs}
    del sweeps["strategy"], sweeps["script"]
    cells: dict[str, Cell] = {}
    asked: set[tuple[str, str]] = set()
    for (strategy, options), *point in itertools.product(strategies, *sweeps.values()):
        chosen = dict(zip(sweeps, point, strict=True))
        chosen["model"], chosen["model_options"] = chosen["model"]
        chosen |= {"strategy": strategy, "options": options}
        facts, model = catalog.strategies[strategy], catalog.models[chosen["model"]]
        backend = chosen["backend"]
        if not facts["needs"]["backends"]:
            chosen["backend"] = facts["needs"]["own_backend"]
        launcher = choose_launcher(facts, chosen["backend"], preferred)
        if chosen["launcher"] == launcher:
            # Naming the automatic launcher must not change the cell's id.
            chosen["launcher"] = "auto"
        device = chosen["device"]
        if device == "auto":
            device = "cuda" if cuda else "cpu"
        if chosen["image"] == default_image(catalog.images, chosen["backend"], device):
            chosen["image"] = "auto"
        known = {**facts["options"], **model["options"]}
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
        files = {kind: own.of_cell(kind, chosen[kind]) for kind in ("model", "data")}
        cell = Cell(
            **{**chosen, "device": device},
            **protocol,
            own_files={kind: file for kind, file in files.items() if file is not None},
            own_strategy=own.of_cell("strategy", strategy),
            script=script,
        )
        if script is not None:
            # Fill in the templates, to see that this works.
            count = count_samples(script["samples_per_step"], values_of(cell))
            fill_arguments(script["args"], values_of(cell.at_rate(count)))
        cells[cell_id] = cell
    return cells


def choose_launcher(
    facts: Mapping[str, Any], backend: str, preferred: str | None = None
) -> str:
    """The launcher that `launcher: auto` means for a strategy over a backend.

    Args:
        preferred: the scheduler's own.
    """
    own = facts["needs"]["launchers"]
    # oneCCL runs over Intel MPI, whose ranks cannot meet under srun.
    if preferred and backend != "ccl" and (not own or preferred in own):
        return preferred
    if own:
        return str(own[0])
    if backend == "none":
        # A process that joins no others needs no launcher, as in `python train.py`.
        return "manual"
    # Only an MPI launcher lets the ranks of an MPI job find each other.
    return "mpirun" if backend == "mpi" else "torchrun"


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
    for preset, values in presets.items():
        if values.items() <= chosen["model_options"].items():
            parts.append(f"{PRESET}={preset}")
            usual |= values
            break
    usual = name_options(chosen["strategy"], usual)
    of_strategy = name_options(chosen["strategy"], chosen["options"])
    for option, value in {**of_strategy, **chosen["model_options"]}.items():
        if value != usual.get(option):
            parts.append(f"{option}={spell_value(value)}")
    for key, rule in schema["properties"].items():
        if key in chosen and key not in _ID and [chosen[key]] != rule["default"]:
            # A variable has a name of its own, and so has a rate per sample.
            is_named = isinstance(chosen[key], Mapping)
            given = chosen[key] if is_named else {key: chosen[key]}
            parts += [f"{name}={spell_value(value)}" for name, value in given.items()]
    return safe_name(".".join(parts), LONGEST_ID)


# The option that stands for several options of a model.
PRESET = "preset"

# An example of a name with options, for messages.
_EXAMPLES = {
    "strategy": "{ddp: {bucket_mb: [1, 25]}}",
    "model": "{emulated: {layers: [4, 8]}}",
}


def expand_variant(key: str, entry: Any, catalog: Catalog) -> Variants:
    """A strategy or model with each combination of its options.

    Args:
        key: ``strategy`` or ``model``.
        entry: a name, or one name with its options.
        catalog: the variants that exist.
    """
    name, options = entry, None
    if isinstance(entry, Mapping) and len(entry) == 1:
        ((name, options),) = entry.items()
    if not isinstance(name, str):
        raise ValueError(
            f"{key}: expected a name, or one name with its options such as "
            f"{_EXAMPLES[key]}, got {entry!r}"
        )
    _check_name(key, name, catalog)
    facts = (catalog.models if key == "model" else catalog.strategies)[name]
    known = facts["options"]
    place, given = f"{key}.{name}", {} if options is None else options
    # `build(**options)` takes what the experiment gives it.
    is_open = facts.get("open", False)
    required = [option for option, rule in known.items() if "default" not in rule]
    schema = {"additionalProperties": is_open, "properties": known}
    schema |= {"type": "object", "required": required}
    found = []
    with gather() as each:
        for chosen in _combine(place, given, facts.get("presets", {})):
            with each():
                check(chosen, schema, source=place)
            more = {k: v for k, v in chosen.items() if k not in known}
            found.append((name, with_defaults(chosen, schema) | more))
    return found


def _combine(
    place: str, options: Any, presets: Mapping[str, Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Each combination of the values of options; a preset stands for several."""
    if not isinstance(options, Mapping):
        raise ValueError(f"{place}: expected options, got {options!r}")
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
        yield chosen


def _check_name(key: str, name: str, catalog: Catalog) -> None:
    known = catalog.names(key)
    if name not in known:
        near = did_you_mean(name, known)
        if key == "model":
            library, _, _ = name.partition("/")
            near = did_you_mean(library, [*known, *LIBRARIES]) or near
        if key == "model" and name.startswith(OF_TORCHVISION):
            near = f"; did you mean 'torchvision/{name}'?"
        raise ValueError(f"{key}: {name!r} is not one of {', '.join(known)}{near}")


# Keys that matter to a script without being arguments of it: they say where it runs.
OF_PLACE = {
    *("backend", "topology", "launcher", "init_method", "gpudirect", "env", "image"),
    *(*OF_QUEUE, "device", "cores_per_device", "oversubscribe"),
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
            "script: the key 'samples_per_step' is missing: a number, or a product "
            "such as batch_size * devices"
        )
    product = str(values["samples_per_step"])
    used = placeholders(values["args"]) | names_in(product)
    for key, given in values.items():
        several = isinstance(given, list) and len(given) > 1
        if several and key not in used | OF_PLACE | {"script", "files"}:
            raise ValueError(
                f"{key}: has several values, but args does not pass {{{key}}} on"
            )
    return {"args": values["args"], "samples_per_step": product}
