"""How much a model computes for each byte that its replicas must exchange."""

from __future__ import annotations

from typing import Any

from rankbench.results.elements.section import Content, Section
from rankbench.results.numbers.result_set import ResultSet
from rankbench.results.numbers.statistics import Estimate
from rankbench.results.numbers.summary import Summary


def make(found: ResultSet) -> Content | None:
    """A row for each cell that is ok and whose records describe the model."""
    described = [one for one in found.measured if one.launches[0].record.get("model")]
    if not described:
        return None
    return Content(rows=[_row(summary) for summary in described])


def _row(summary: Summary) -> dict[str, Any]:
    record = summary.launches[0].record
    model = record["model"]
    flops, size = model["flops_per_sample"], model["parameter_bytes"]
    batch = ratio = None
    if shape := record.get("shape"):
        batch = shape["global_batch"] / shape["replicas"]
        if shape["replicas"] > 1 and size and flops is not None:
            ratio = flops * batch / size
    # Of the model of a script, only the parameters are known.
    gflop = None if flops is None else flops / 1e9
    units = summary.cell.units_per_sample
    samples = summary.numbers["throughput"].scaled(1 / units)
    rate = None
    if gflop is not None:
        rate = samples.scaled(gflop) if gflop else Estimate(0.0)
    return {
        "cell": summary.id,
        "model": summary.cell.model,
        "parameters": model["parameters"],
        "gradient_mb": size / 1e6,
        "gflop_per_sample": gflop,
        "replica_batch": batch,
        "flop_per_byte": ratio,
        "gflop_s": rate,
    }


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
)
