"""How much a model computes for each byte that its replicas must exchange."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pandas as pd

from rankbench.record import Record
from rankbench.results.elements.section import (
    Content,
    Drawing,
    Section,
    Versions,
    make_frame,
)
from rankbench.results.numbers.found import Found
from rankbench.results.numbers.statistics import Estimate
from rankbench.results.numbers.summary import Summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HEIGHT = 3.4
_CAPTION = (
    "Efficiency against computation per byte: models further to the right can hide "
    "more of their communication."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Intensity:
    """Of one cell.

    Attributes:
        gradient_mb: 10^6 bytes of gradients, in float32.
        gflop_per_sample: 10^9 operations, forward and backward.
        replica_batch: samples of a replica in a step; None if the record does not tell.
        flop_per_byte: of a replica's step; None where there is one replica alone.
        gflop_s: 10^9 operations per second, of all devices.
    """

    cell: str
    model: str
    parameters: int
    gradient_mb: float
    gflop_per_sample: float
    replica_batch: float | None
    flop_per_byte: float | None
    gflop_s: Estimate


def find_intensities(summaries: Sequence[Summary]) -> list[Intensity]:
    """Rows that are ok and whose records tell of the model."""
    return [
        _find(summary, summary.row.launches[0].record)
        for summary in summaries
        if summary.measures and summary.row.launches[0].record.get("model")
    ]


def make(found: Found) -> Content | None:
    """A row for each cell that is ok and whose records describe the model."""
    intensities = find_intensities(found.summaries)
    if not intensities:
        return None
    rows = [
        {name: getattr(one, name) for name in SECTION.columns} for one in intensities
    ]
    points = find_points(intensities, found.summaries)
    drawings = [
        Drawing(
            name="models",
            caption=_CAPTION,
            frame=partial(_frame, points),
            draw=partial(_draw, points),
        )
    ]
    return Content(rows=rows, drawings=drawings if points else [])


def _find(summary: Summary, record: Record) -> Intensity:
    model = record["model"]
    flops, size = model["flops_per_sample"], model["parameter_bytes"]
    shape = record.get("shape")
    batch = ratio = None
    if shape:
        batch = shape["global_batch"] / shape["replicas"]
        if shape["replicas"] > 1 and size:
            ratio = flops * batch / size
    throughput = summary.numbers["throughput"]
    gflop = flops / 1e9
    return Intensity(
        cell=summary.row.id,
        model=summary.row.cell.model,
        parameters=model["parameters"],
        gradient_mb=size / 1e6,
        gflop_per_sample=gflop,
        replica_batch=batch,
        flop_per_byte=ratio,
        gflop_s=throughput.scaled(gflop) if gflop else Estimate(0.0),
    )


# A model's ratio, and the row that it is of.
Point = tuple[Intensity, Summary]


def find_points(
    found: Sequence[Intensity], summaries: Sequence[Summary]
) -> list[Point]:
    """Rows with several replicas and an efficiency; [] if all train one model."""
    by_cell = {summary.row.id: summary for summary in summaries}
    points = [
        (one, by_cell[one.cell])
        for one in found
        if one.flop_per_byte and "efficiency" in by_cell[one.cell].numbers
    ]
    return points if len({one.model for one, _ in points}) > 1 else []


def _frame(points: Sequence[Point]) -> pd.DataFrame:
    columns = {
        "cell": str,
        "model": str,
        "flop_per_byte": float,
        "efficiency": Estimate,
    }
    rows = [
        {
            "cell": one.cell,
            "model": one.model,
            "flop_per_byte": one.flop_per_byte,
            "efficiency": summary.numbers["efficiency"],
        }
        for one, summary in points
    ]
    return make_frame(columns, rows)


def _draw(points: Sequence[Point], width: float) -> Figure:
    """Efficiency against the FLOPs of a step over the bytes of the gradients.

    Points are not joined: there is nothing between two models.
    """
    import seaborn as sns
    from matplotlib.figure import Figure

    from rankbench.results.elements import plotting

    models = list(dict.fromkeys(one.model for one, _ in points))
    figure = Figure(figsize=(width, _HEIGHT), layout="constrained")
    axes = figure.subplots()
    colors, markers = plotting.choose_colors(models), plotting.choose_markers(models)
    named: set[str] = set()
    for one, summary in points:
        number, ratio = summary.numbers["efficiency"], one.flop_per_byte
        assert ratio is not None
        color = colors[one.model]
        label = None if one.model in named else one.model
        named.add(one.model)
        style = {"color": color, "ms": 6, "label": label}
        axes.plot(ratio, number.value, markers[one.model], **style)
        plotting.draw_interval(axes, ratio, number, color=color)
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


SECTION = Section(
    name="models",
    title="Computation and communication of the models",
    reading=(
        "Of the model: parameters, their gradients in float32, and the arithmetic of "
        "one sample, forward and backward (matrix products and convolutions; a "
        "multiplication and an addition are two). FLOP per byte: what a replica "
        "computes in a step, over its gradients. Data parallelism averages these once "
        "in each step: the lower the ratio, the more a step depends on the network. A "
        "strategy may send more (fsdp gathers weights too) or less (compressed "
        "gradients). GFLOP/s: throughput x FLOP per sample, of all devices together."
    ),
    order=70,
    make=make,
    columns={
        "cell": (str, "cell"),
        "model": str,
        "parameters": (int, "parameters"),
        "gradient_mb": (float, "gradients (MB)"),
        "gflop_per_sample": (float, "GFLOP/sample"),
        "replica_batch": (float, "batch of a replica"),
        "flop_per_byte": (float, "FLOP per byte"),
        "gflop_s": (Estimate, "GFLOP/s"),
    },
    plots={"models": Versions()},
)
