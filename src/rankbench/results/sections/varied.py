"""What is varied beside devices, and its data: microbatches, and models."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

import pandas as pd

from rankbench.results.numbers.summary import Summary
from rankbench.results.sections.intensity import Intensity

# A model's ratio, and the row that it is of.
Point = tuple[Intensity, Summary]


def find_microbatches(summaries: Sequence[Summary]) -> dict[str, list[Summary]]:
    """Rows that differ in their number of microbatches alone, by what they share."""
    groups: dict[str, list[Summary]] = {}
    for summary in summaries:
        options = summary.row.cell.options
        if summary.measures and "microbatches" in options:
            fields = summary.row.cell.to_dict()
            rest = {k: v for k, v in options.items() if k != "microbatches"}
            key = json.dumps({**fields, "options": rest}, sort_keys=True)
            groups.setdefault(key, []).append(summary)
    found = {}
    for group in groups.values():
        cell = group[0].row.cell
        name = f"{cell.strategy} {cell.backend} {cell.topology} {cell.model}"
        if len(group) > 1:
            found[f"{name} {cell.options.get('schedule', '')}".strip()] = group
    return found


def make_microbatches_frame(groups: Mapping[str, Sequence[Summary]]) -> pd.DataFrame:
    """The data of `options.draw_microbatches`."""
    return pd.DataFrame(
        [
            {
                "series": name,
                "cell": summary.row.id,
                "microbatches": summary.row.cell.options["microbatches"],
                **_columns(summary, "speedup"),
                **_columns(summary, "throughput"),
            }
            for name, group in groups.items()
            for summary in group
        ]
    )


def find_models(
    found: Sequence[Intensity], summaries: Sequence[Summary]
) -> list[Point]:
    """Rows with several replicas and an efficiency; [] where one model has them all."""
    by_cell = {summary.row.id: summary for summary in summaries}
    points = [
        (one, by_cell[one.cell])
        for one in found
        if one.flop_per_byte and "efficiency" in by_cell[one.cell].numbers
    ]
    return points if len({one.model for one, _ in points}) > 1 else []


def make_models_frame(points: Sequence[Point]) -> pd.DataFrame:
    """The data of `options.draw_models`."""
    return pd.DataFrame(
        [
            {
                "cell": one.cell,
                "model": one.model,
                "flop_per_byte": one.flop_per_byte,
                **_columns(summary, "efficiency"),
            }
            for one, summary in points
        ]
    )


def _columns(summary: Summary, name: str) -> dict[str, float]:
    number = summary.numbers.get(name)
    values = (number.value, number.low, number.high) if number else (None,) * 3
    return {
        f"{name}{end}": math.nan if value is None else value
        for end, value in zip(("", "_lo", "_hi"), values, strict=True)
    }
