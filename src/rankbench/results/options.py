"""Plots over what is varied beside devices: microbatches, and models."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from rankbench.results.intensity import Intensity
from rankbench.results.summary import Summary

# A model's ratio, and the row that it is of.
Point = tuple[Intensity, Summary]

_HEIGHT = 3.4
_MARKERS = "osD^vPX*"


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
    """The data of `draw_microbatches`."""
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


def make_models_frame(points: Sequence[Point]) -> pd.DataFrame:
    """The data of `draw_models`."""
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


def draw_microbatches(groups: dict[str, list[Summary]], *, width: float) -> Figure:
    """Speedup, or throughput where there is no base, against microbatches.

    Args:
        groups: from `find_microbatches`, at least one.
        width: of the figure, in inches.
    """
    figure = Figure(figsize=(width, _HEIGHT), layout="constrained")
    axes = figure.subplots()
    members = [summary for group in groups.values() for summary in group]
    what = "speedup" if all("speedup" in s.numbers for s in members) else "throughput"
    colors = sns.color_palette("colorblind", len(groups))
    for place, ((name, group), color) in enumerate(
        zip(groups.items(), colors, strict=True)
    ):
        ordered = sorted(group, key=lambda s: s.row.cell.options["microbatches"])
        x = [s.row.cell.options["microbatches"] for s in ordered]
        numbers = [s.numbers[what] for s in ordered]
        y = [number.value for number in numbers]
        marker = _MARKERS[place % len(_MARKERS)]
        axes.plot(x, y, color=color, marker=marker, ms=5, lw=1.1, label=name)
        for at, number in zip(x, numbers, strict=True):
            if number.low is not None and number.high is not None:
                axes.vlines(at, number.low, number.high, color=color, lw=3, alpha=0.3)
    counts = sorted({s.row.cell.options["microbatches"] for s in members})
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.minorticks_off()
    axes.set_xlabel("microbatches")
    axes.set_ylabel(what if what == "speedup" else "samples/s")
    axes.set_ylim(bottom=0)
    figure.legend(loc="outside lower center", ncols=2)
    sns.despine(ax=axes)
    return figure


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


def draw_models(points: Sequence[Point], *, width: float) -> Figure:
    """Efficiency against the FLOPs of a step over the bytes of the gradients.

    Points are not joined: between two models there is none.

    Args:
        points: from `find_models`, at least two.
        width: of the figure, in inches.
    """
    models = list(dict.fromkeys(one.model for one, _ in points))
    figure = Figure(figsize=(width, _HEIGHT), layout="constrained")
    axes = figure.subplots()
    colors = dict(
        zip(models, sns.color_palette("colorblind", len(models)), strict=True)
    )
    named: set[str] = set()
    for one, summary in points:
        number, ratio = summary.numbers["efficiency"], one.flop_per_byte
        assert ratio is not None
        color = colors[one.model]
        marker = _MARKERS[models.index(one.model) % len(_MARKERS)]
        label = None if one.model in named else one.model
        named.add(one.model)
        axes.plot(ratio, number.value, marker, color=color, ms=6, label=label)
        if number.low is not None and number.high is not None:
            axes.vlines(ratio, number.low, number.high, color=color)
        name = f"{summary.row.cell.strategy} {summary.row.cell.topology}"
        at = (ratio, number.value)
        axes.annotate(name, at, (5, 4), textcoords="offset points", size=7)
    axes.axhline(1, color="0.5", ls="--", lw=1, zorder=1)
    axes.set_xscale("log")
    axes.set_xlabel("FLOP of a step per byte of gradients")
    axes.set_ylabel("efficiency")
    axes.set_ylim(bottom=0)
    figure.legend(loc="outside lower center", ncols=4)
    sns.despine(ax=axes)
    return figure
