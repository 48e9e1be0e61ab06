"""The arithmetic of a row, and the largest rate of its devices."""

from __future__ import annotations

from collections.abc import Mapping

from rankbench.decoder import FORMULA
from rankbench.results.numbers.peaks import find_peak
from rankbench.results.numbers.summary import Summary

# How the arithmetic of a language model is known without a formula.
COUNTED = "counter of torch"


def flops_of(summary: Summary) -> tuple[float, str] | None:
    """Operations of a sample or token, and how they are known; None if they are not."""
    model = summary.row.launches[0].record.get("model") or {}
    formula = model.get("flops_by_formula")
    flops = formula or model.get("flops_per_sample")
    if not flops:
        return None
    units = summary.row.cell.units_per_sample
    return flops / units, FORMULA if formula else COUNTED


def peak_of(summary: Summary, peaks: Mapping[str, float]) -> float:
    """The largest rate of a device of a row, in TFLOP/s.

    Args:
        summary: a row that is ok.
        peaks: precision -> rate, as the site file gives it.

    Raises:
        LookupError: it is not known; the message is the reason.
    """
    precision = summary.row.cell.precision
    if precision in peaks:
        return peaks[precision]
    names = {
        gpu["name"]
        for launch in summary.row.launches
        for host in launch.record["hosts"]
        for gpu in host["gpus"]
    }
    if not names:
        raise LookupError("no peak of this CPU is known: set peak_tflops in site.yaml")
    if len(names) != 1:
        raise LookupError(f"different GPUs: {', '.join(sorted(names))}")
    (name,) = names
    peak = find_peak(name, precision)
    if peak is None:
        raise LookupError(
            f"no peak of {name} in {precision} is known: set peak_tflops in site.yaml"
        )
    return peak


def mfu_of_launches(summary: Summary, peaks: Mapping[str, float]) -> list[float]:
    """Model FLOPs utilisation of each launch in percent; [] if it is not known."""
    found = flops_of(summary) if summary.measures else None
    if found is None:
        return []
    try:
        peak = peak_of(summary, peaks)
    except LookupError:
        return []
    each = found[0] / summary.row.devices / 1e12 / peak
    return [100 * launch.throughput * each for launch in summary.counted]
