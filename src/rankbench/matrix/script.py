"""Checks what an experiment says of a whole training script."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rankbench.cell import Cell
from rankbench.templates import (
    count_samples,
    fill_arguments,
    names_in,
    placeholders,
    values_of,
)

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
