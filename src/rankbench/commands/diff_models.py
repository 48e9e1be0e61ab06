"""The command `rankbench diff-models`."""

from __future__ import annotations

import argparse
import math
from dataclasses import asdict
from typing import Any

from rankbench.commands._options import FINDING, OK, command, print_json
from rankbench.say import say


@command(
    options="MODEL --tolerance",
    examples=(
        "diff-models records/CELL/1/1 --json",
        "diff-models records/CELL/1/1 records/OTHER/1/1 --tolerance 1e-6",
    ),
    exits="0 all are equal, 1 one differs, 2 bad input",
    json_holds="the tensors that differ, for each pair of models",
)
def diff_models(arguments: argparse.Namespace) -> int:
    """Compare the first trained model with each of the others: print which tensors
    differ, and how much. Launches with `save_model` save models. Reading a model
    executes nothing.
    """
    from rankbench.rank.training import saving

    paths = [path for given in arguments.model for path in saving.find_models(given)]
    if len(paths) < 2:
        raise ValueError(
            f"{paths[0]} is one model: give another one, or the folder of a launch "
            "that was measured with `save_model: per_rank`"
        )
    first = saving.load_model(paths[0])
    pairs = {
        path: saving.compare_models(
            first, saving.load_model(path), tolerance=arguments.tolerance
        )
        for path in paths[1:]
    }
    if arguments.json:
        print_json(
            [
                {
                    "first": paths[0],
                    "second": path,
                    "tensors": len(first),
                    "differences": [_strict(asdict(one)) for one in found],
                }
                for path, found in pairs.items()
            ]
        )
    else:
        for path, found in pairs.items():
            say(f"{paths[0]}\n{path}", *map(_to_text, found))
            count = f"{len(found)} differ" if found else "all are equal"
            say(f"  {len(first)} tensors, {count}")
    return FINDING if any(pairs.values()) else OK


def _to_text(tensor: Any) -> str:
    if tensor.largest is None:
        missing = tensor.what in ("first", "second")
        where = f"missing in the {tensor.what}" if missing else f"other {tensor.what}"
        return f"  {tensor.name}: {where}"
    return (
        f"  {tensor.name}: up to {tensor.largest:.3g}, relative {tensor.relative:.3g}"
    )


def _strict(values: dict[str, Any]) -> dict[str, Any]:
    """The values with strings for numbers that are not finite."""
    return {
        key: str(value)
        if isinstance(value, float) and not math.isfinite(value)
        else value
        for key, value in values.items()
    }
