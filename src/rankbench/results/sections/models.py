"""What models compute and exchange, and what share of the devices' peak that is."""

from __future__ import annotations

from typing import Any

from rankbench.results.elements.section import Content, Section
from rankbench.results.numbers.hardware import find_rates
from rankbench.results.numbers.result_set import ResultSet, Summary


def make(found: ResultSet) -> Content | None:
    """Of the model: parameters, their gradients in float32, and the arithmetic of one
    sample, forward and backward (matrix products and convolutions; a multiplication and
    an addition are two). FLOP per byte: what a replica computes in a step, over its
    gradients. Data parallelism averages these once in each step: the lower the ratio,
    the more a step depends on the network. A strategy may send more (fsdp gathers
    weights too) or less (compressed gradients). GFLOP/s: throughput x FLOP per sample,
    of all devices together; TFLOP/s: of one device. What checkpointing computes again
    does not count. MFU (model FLOPs utilisation, as in the appendix of the PaLM paper):
    that rate over the largest rate of the device in this precision, without sparsity,
    from the maker's data sheet or from peak_tflops in site.yaml. HFU (hardware FLOPs
    utilisation) also counts what checkpointing computes again.
    """
    described = [one for one in found.measured if one.records[0]["model"]]
    if not described:
        return None
    peaks = found.peaks
    return Content(rows=[_row(one) | find_rates(one, peaks) for one in described])


def _row(summary: Summary) -> dict[str, Any]:
    record = summary.records[0]
    model = record["model"]
    flops, size = model["flops_per_sample"], model["parameter_bytes"]
    batch = ratio = None
    if shape := record["shape"]:
        batch = shape["global_batch"] / shape["replicas"]
        if shape["replicas"] > 1 and size and flops is not None:
            ratio = flops * batch / size
    # Of the model of a script, only the parameters are known.
    gflop = None if flops is None else flops / 1e9
    samples = summary.rate / summary.cell.units_per_sample
    details = record["ranks"][0]["details"]
    kernels = {k: details[k] for k in ("attention", "experts") if k in details}
    return kernels | {
        "cell": summary.id,
        "model": summary.cell.model,
        "parameters": model["parameters"],
        "gradient_mb": size / 1e6,
        "gflop_per_sample": gflop,
        "replica_batch": batch,
        "flop_per_byte": ratio,
        "gflop_s": None if gflop is None else samples * gflop,
    }


SECTION = Section(
    title="Arithmetic of models and devices",
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
        "gflop_s": (float, "GFLOP/s"),
        "precision": (str | None, "precision"),
        "tflop_s": (float | None, "TFLOP/s per device"),
        "peak_tflop_s": (float | None, "peak"),
        "mfu_pct": (float | None, "MFU (%)"),
        "hfu_pct": (float | None, "HFU (%)"),
        "mflop_per_token": (float | None, "MFLOP/token"),
        "flops_by": (str | None, "FLOPs by"),
        "attention": (str | None, "attention by"),
        "experts": (str | None, "experts"),
        "reason": (str | None, "why no MFU"),
    },
)
