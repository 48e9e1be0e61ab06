"""How much of the arithmetic that its devices can do a cell has used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rankbench.results.elements.section import Content, Section
from rankbench.results.numbers.flops import flops_of, peak_of
from rankbench.results.numbers.result_set import ResultSet
from rankbench.results.numbers.statistics import Estimate
from rankbench.results.numbers.summary import Summary


def make(found: ResultSet) -> Content | None:
    """A row for cells on GPUs, with a peak in the site file, or of language models."""
    peaks = found.peaks
    rows = [
        _row(summary, peaks)
        for summary in found.measured
        if (
            summary.cell.device == "cuda"
            or summary.cell.precision in peaks
            or summary.cell.unit == "tokens"
        )
        and flops_of(summary)
    ]
    return Content(rows=rows) if rows else None


def _row(summary: Summary, peaks: Mapping[str, float]) -> dict[str, Any]:
    cell, found = summary.cell, flops_of(summary)
    assert found is not None
    flops, known_by = found
    rate = summary.numbers["throughput"].scaled(flops / summary.devices / 1e12)
    row: dict[str, Any] = {
        "cell": summary.id,
        "precision": cell.precision,
        "tflop_s": rate,
    }
    if cell.unit == "tokens":
        row |= {
            "parameters": summary.launches[0].record["model"]["parameters"],
            "mflop_per_token": flops / 1e6,
            "flops_by": known_by,
        }
    try:
        peak = peak_of(summary, peaks)
    except LookupError as error:
        return {**row, "reason": error.args[0]}
    mfu = rate.scaled(100 / peak)
    if mfu.value > 100:
        reason = f"{rate.value:.4g} TFLOP/s is above the peak: correct peak_tflops"
        return {**row, "peak_tflop_s": peak, "reason": reason}
    row |= {"peak_tflop_s": peak, "mfu_pct": mfu}
    if cell.unit == "tokens" and cell.checkpointing == "full":
        row["hfu_pct"] = mfu.scaled(4 / 3)
    return row


SECTION = Section(
    name="arithmetic",
    title="Arithmetic against the peak of the devices",
    reading=(
        "TFLOP/s: throughput x arithmetic of one sample, of one device. The arithmetic "
        "is that of the model, forward and backward, as in the section on the models; "
        "what checkpointing computes again does not count. MFU (model FLOPs "
        "utilisation, as in the appendix of the PaLM paper): that rate over the "
        "largest rate of the device in this precision, without sparsity, from the "
        "maker's data sheet or from peak_tflops in site.yaml. HFU (hardware FLOPs "
        "utilisation) is 4/3 of MFU with `checkpointing: full`."
    ),
    order=72,
    make=make,
    columns={
        "cell": (str, "cell"),
        "precision": (str, "precision"),
        "tflop_s": (Estimate, "TFLOP/s per device"),
        "peak_tflop_s": (float, "peak"),
        "mfu_pct": (Estimate, "MFU (%)"),
        "hfu_pct": (Estimate, "HFU (%)"),
        "parameters": (int, "parameters"),
        "mflop_per_token": (float, "MFLOP/token"),
        "flops_by": (str, "FLOPs by"),
        "reason": (str, "why not"),
    },
    optional=["hfu_pct", "parameters", "mflop_per_token", "flops_by"],
)
