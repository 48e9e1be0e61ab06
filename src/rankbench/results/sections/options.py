"""Plots over what is varied beside devices: microbatches, and models."""

from __future__ import annotations

from collections.abc import Sequence

import seaborn as sns
from matplotlib.figure import Figure

from rankbench.results.numbers.summary import Summary
from rankbench.results.sections.varied import Point

_HEIGHT = 3.4
_MARKERS = "osD^vPX*"


def draw_microbatches(groups: dict[str, list[Summary]], *, width: float) -> Figure:
    """Speedup, or throughput where there is no base, against microbatches.

    Args:
        groups: from `varied.find_microbatches`, at least one.
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


def draw_models(points: Sequence[Point], *, width: float) -> Figure:
    """Efficiency against the FLOPs of a step over the bytes of the gradients.

    Points are not joined: between two models there is none.

    Args:
        points: from `varied.find_models`, at least two.
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
