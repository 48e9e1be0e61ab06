"""How much a model computes for each byte that its replicas must exchange."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from rankbench.record import Record
from rankbench.results.elements.content import Section
from rankbench.results.elements.text import (
    Grid,
    Text,
    figures,
    round_figures,
    show_estimate,
)
from rankbench.results.numbers.statistics import Estimate
from rankbench.results.numbers.summary import Summary

TITLE = "Computation and communication"

ABOUT = (
    "Of the model: parameters, their gradients in float32, and the arithmetic of one "
    "sample, forward and backward (matrix products and convolutions; a multiplication"
    " and an addition are two). FLOP per byte: what a replica computes in a step, "
    "over its gradients, which data parallelism averages once in each step; the "
    "lower, the more a step depends on the network. A strategy may send more (fsdp "
    "gathers weights too) or less (compressed gradients). GFLOP/s: throughput x FLOP "
    "per sample, of all devices together."
)

PLOTTED = (
    "Efficiency against computation per byte: models further to the right can hide "
    "more of their communication."
)

COLUMNS = (
    "cell",
    "model",
    "parameters",
    "gradient_mb",
    "gflop_per_sample",
    "replica_batch",
    "flop_per_byte",
    "gflop_s",
    "gflop_s_lo",
    "gflop_s_hi",
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


def make_frame(found: Sequence[Intensity]) -> pd.DataFrame:
    """The columns of models.csv; numbers have 4 significant digits or are missing."""
    rows = [
        {
            "cell": one.cell,
            "model": one.model,
            "parameters": one.parameters,
            "gradient_mb": round_figures(one.gradient_mb),
            "gflop_per_sample": round_figures(one.gflop_per_sample),
            "replica_batch": _round(one.replica_batch),
            "flop_per_byte": _round(one.flop_per_byte),
            "gflop_s": round_figures(one.gflop_s.value),
            "gflop_s_lo": _round(one.gflop_s.low),
            "gflop_s_hi": _round(one.gflop_s.high),
        }
        for one in found
    ]
    types = {"parameters": "Int64"} | dict.fromkeys(COLUMNS[3:], "float64")
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(types)


def show(found: Sequence[Intensity], *, has_plot: bool = False) -> Section | None:
    """Nothing where no record tells of the model.

    has_plot: whether efficiency can be plotted against the ratio.
    """
    if not found:
        return None
    columns = {
        "cell": False,
        "parameters": True,
        "gradients (MB)": True,
        "GFLOP/sample": True,
        "batch of a replica": True,
        "FLOP per byte": True,
        "GFLOP/s": True,
    }
    rows = [
        [
            Text(one.cell),
            Text(str(one.parameters)),
            Text(figures(one.gradient_mb)),
            Text(figures(one.gflop_per_sample)),
            _show(one.replica_batch),
            _show(one.flop_per_byte),
            show_estimate(one.gflop_s),
        ]
        for one in found
    ]
    return Section(
        title=TITLE,
        about=ABOUT,
        files=("models.csv",),
        plots=[("models", PLOTTED)] if has_plot else [],
        grids=[Grid(TITLE, columns, rows)],
    )


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


def _round(value: float | None) -> float | None:
    return None if value is None else round_figures(value)


def _show(value: float | None) -> Text:
    return Text("" if value is None else figures(value))
