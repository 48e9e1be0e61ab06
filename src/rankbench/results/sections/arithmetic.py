"""How much of the arithmetic that its devices can do a cell has used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rankbench.results.elements.section import Content, Section, Versions
from rankbench.results.numbers.found import Found
from rankbench.results.numbers.peaks import find_peak
from rankbench.results.numbers.statistics import Estimate
from rankbench.results.numbers.summary import Summary


def make(found: Found) -> Content | None:
    """A row for each cell on GPUs, or on devices whose peak the site file gives."""
    peaks = found.results.peaks
    rows = [
        _row(summary, peaks)
        for summary in found.measured
        if (summary.row.cell.device == "cuda" or summary.row.cell.precision in peaks)
        and (summary.row.launches[0].record.get("model") or {}).get("flops_per_sample")
    ]
    return Content(rows=rows) if rows else None


def _row(summary: Summary, peaks: Mapping[str, float]) -> dict[str, Any]:
    flops = summary.row.launches[0].record["model"]["flops_per_sample"]
    precision = summary.row.cell.precision
    rate = summary.numbers["throughput"].scaled(flops / summary.row.devices / 1e12)
    row: dict[str, Any] = {
        "cell": summary.row.id,
        "precision": precision,
        "tflop_s": rate,
    }
    try:
        peak = peaks.get(precision) or _find_peak(summary, precision)
    except LookupError as error:
        return {**row, "reason": error.args[0]}
    mfu = rate.scaled(100 / peak)
    if mfu.value > 100:
        reason = f"{rate.value:.4g} TFLOP/s is above the peak: correct peak_tflops"
        return {**row, "peak_tflop_s": peak, "reason": reason}
    return {**row, "peak_tflop_s": peak, "mfu_pct": mfu}


def _find_peak(summary: Summary, precision: str) -> float:
    """The peak of the devices of a cell.

    Raises:
        LookupError: it is not known; the message is the reason.
    """
    names = {
        gpu["name"]
        for launch in summary.row.launches
        for host in launch.record["hosts"]
        for gpu in host["gpus"]
    }
    if len(names) != 1:
        raise LookupError(f"different GPUs: {', '.join(sorted(names)) or 'unknown'}")
    (name,) = names
    peak = find_peak(name, precision)
    if peak is None:
        raise LookupError(
            f"no peak of {name} in {precision} is known: set peak_tflops in site.yaml"
        )
    return peak


SECTION = Section(
    name="arithmetic",
    title="Arithmetic against the peak of the devices",
    reading=(
        "TFLOP/s: throughput x arithmetic of one sample, of one device. The arithmetic "
        "is that of the model, forward and backward, as in the section on the models; "
        "what checkpointing computes again does not count. MFU (model FLOPs "
        "utilisation, as in the appendix of the PaLM paper): that rate over the "
        "largest rate of the device in this precision, without sparsity, from the "
        "maker's data sheet or from peak_tflops in site.yaml."
    ),
    order=72,
    make=make,
    columns={
        "cell": (str, "cell"),
        "precision": (str, "precision"),
        "tflop_s": (Estimate, "TFLOP/s per device"),
        "peak_tflop_s": (float, "peak"),
        "mfu_pct": (Estimate, "MFU (%)"),
        "reason": (str, "why not"),
    },
    versions=Versions(presentation=1),
)
