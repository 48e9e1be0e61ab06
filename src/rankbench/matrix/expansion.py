"""The cells of a sweep, and their ids."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rankbench.cell import Cell
from rankbench.matrix.catalog import NONE, Catalog, StrategyFacts
from rankbench.matrix.images import default_image
from rankbench.matrix.layers import sweep_keys
from rankbench.matrix.own import OwnFiles
from rankbench.matrix.schema import Schema
from rankbench.matrix.script import check_script, script_of
from rankbench.matrix.selection import spell_value
from rankbench.matrix.variants import (
    PRESET,
    check_data,
    expand_models,
    expand_strategies,
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
