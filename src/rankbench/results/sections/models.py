"""How much a model computes for each byte that its replicas must exchange."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from rankbench.results.elements.section import (
    Content,
    Drawing,
    Row,
    Section,
    make_frame,
)
from rankbench.results.numbers.result_set import ResultSet
from rankbench.results.numbers.statistics import Estimate
from rankbench.results.numbers.summary import Summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HEIGHT = 2.9
_CAPTION = (
    "Efficiency against computation per byte: models further to the right can hide "
    "more of their communication."
)


_POINTS = {"cell": str, "model": str, "flop_per_byte": float, "efficiency": Estimate}


def make(found: ResultSet) -> Content | None:
    """A row for each cell that is ok and whose records describe the model."""
    described = [
        one for one in found.measured if one.row.launches[0].record.get("model")
    ]
    if not described:
        return None
    rows = [_row(summary) for summary in described]
    points = [
        (row | {"efficiency": summary.numbers["efficiency"]}, summary)
        for row, summary in zip(rows, described, strict=True)
        if row["flop_per_byte"] and "efficiency" in summary.numbers
    ]
    if len({row["model"] for row, _ in points}) < 2:
        return Content(rows=rows)
    drawing = Drawing(
        name="models",
        caption=_CAPTION,
        frame=partial(
            make_frame, _POINTS, [{k: row[k] for k in _POINTS} for row, _ in points]
        ),
        draw=partial(_draw, points),
    )
    return Content(rows=rows, drawings=[drawing])


def _row(summary: Summary) -> dict[str, Any]:
    record = summary.row.launches[0].record
    model = record["model"]
    flops, size = model["flops_per_sample"], model["parameter_bytes"]
    batch = ratio = None
    if shape := record.get("shape"):
        batch = shape["global_batch"] / shape["replicas"]
        if shape["replicas"] > 1 and size and flops is not None:
            ratio = flops * batch / size
    # Of the model of a script, only the parameters are known.
    gflop = None if flops is None else flops / 1e9
    units = summary.row.cell.units_per_sample
    samples = summary.numbers["throughput"].scaled(1 / units)
    return {
        "cell": summary.row.id,
        "model": summary.row.cell.model,
        "parameters": model["parameters"],
        "gradient_mb": size / 1e6,
        "gflop_per_sample": gflop,
        "replica_batch": batch,
        "flop_per_byte": ratio,
        "gflop_s": None if gflop is None else _per_second(samples, gflop),
    }


def _per_second(samples: Estimate, gflop: float) -> Estimate:
    return samples.scaled(gflop) if gflop else Estimate(0.0)


def _draw(points: Sequence[tuple[Row, Summary]], width: float) -> Figure:
    """Efficiency against the FLOPs of a step over the bytes of the gradients.

    Points are not joined: there is nothing between two models.
    """
    import seaborn as sns

    from rankbench.results.elements import plotting

    models = list(dict.fromkeys(row["model"] for row, _ in points))
    figure, (axes,) = plotting.make_figure([_HEIGHT], width=width)
    colors, markers = plotting.choose_colors(models), plotting.choose_markers(models)
    named: set[str] = set()
    for row, summary in points:
        model, number, at = row["model"], row["efficiency"], row["flop_per_byte"]
        color = colors[model]
        label = None if model in named else model
        named.add(model)
        style = {"color": color, "ms": 6, "label": label}
        axes.plot(at, number.value, markers[model], **style)
        plotting.draw_interval(axes, at, number, color=color)
        name = f"{summary.row.cell.strategy} {summary.row.cell.topology}"
        place = (at, number.value)
        axes.annotate(name, place, (5, 4), textcoords="offset points", size=7)
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
    # Version 2: all efficiencies of a workload have the same base.
    plots=("models",),
)
