"""What the devices of a row can do and did: arithmetic, energy, heat, network."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rankbench.decoder import FORMULA
from rankbench.record import Record

if TYPE_CHECKING:
    from rankbench.results.numbers.result_set import Summary

# How the arithmetic of a language model is known without a formula.
COUNTED = "counter of torch"

# Name that the driver gives to a GPU, as a pattern -> 10^12 operations per second (a
# multiply-add counts as two) of fp8, of bf16 and fp16 (of V100 and T4 fp16 alone), of
# tf32, of fp32. All but the last are of tensor cores, without sparsity. The first match
# counts.
# Source: NVIDIA's data sheets of these products, HGX B300 (2025), GB200 NVL72 and HGX
# B200 (2024), H200 (2024), H100 (2022), A100 (2021), A40 (2021), A30 (2022), A10
# (2021), RTX A6000 (2020), L40 (2022), L40S (2023), L4 (2023), V100 (2020), T4 (2019);
# RTX 4090: its architecture's white paper (Ada, 2022), accumulated in fp32. Since the
# A100 they state rates with sparsity, twice of these. Those of B300, GB200, RTX A6000,
# RTX 4090 and L40 were read where others quote them; tf32 of RTX A6000 is half of its
# bf16, as on the A40.
_PEAKS: tuple[tuple[str, float | None, float, float | None, float], ...] = (
    (r"\bB300\b", 4500, 2250, 1125, 75),
    (r"\bGB200\b", 5000, 2500, 1250, 80),
    (r"\bB200\b", 4500, 2250, 1125, 75),
    (r"\bH200 NVL\b", 1670.5, 835.5, 417.5, 60),
    (r"\bH200\b", 1979, 989.5, 494.5, 67),
    (r"\bH100 NVL\b", 1670.5, 835.5, 417.5, 60),
    (r"\bH100 PCIe\b", 1513, 756.5, 378, 51),
    (r"\bH100 .*HBM3\b", 1979, 989.5, 494.5, 67),
    (r"\bA100\b", None, 312, 156, 19.5),
    (r"\bA40\b", None, 149.7, 74.8, 37.4),
    (r"\bA30\b", None, 165, 82, 10.3),
    (r"\bA10\b", None, 125, 62.5, 31.2),
    (r"\bRTX A6000$", None, 154.8, 77.4, 38.7),
    (r"\bRTX 4090$", 330.3, 165.2, 82.6, 82.6),
    (r"\bL40\b", 362, 181, 90.5, 90.5),
    (r"\bL40S\b", 733, 362, 183, 91.6),
    (r"\bL4\b", 242.5, 121, 60, 30.3),
    (r"\bV100S-PCIE\b", None, 130, None, 16.4),
    (r"\bV100-PCIE\b", None, 112, None, 14),
    (r"\bV100-SXM", None, 125, None, 15.7),
    (r"\bT4\b", None, 65, None, 8.1),
)


def peak_of(summary: Summary, peaks: Mapping[str, float]) -> float | str:
    """The largest rate of a device of a row, in TFLOP/s; or why it is not known.

    Args:
        summary: a row that is ok.
        peaks: precision -> rate, as the site file gives it.
    """
    precision = summary.cell.precision
    if precision in peaks:
        return peaks[precision]
    names = {
        gpu["name"]
        for record in summary.records
        for host in record["hosts"]
        for gpu in host["gpus"]
    }
    if not names:
        return "no peak of this CPU is known: set peak_tflops in site.yaml"
    if len(names) != 1:
        return f"different GPUs: {', '.join(sorted(names))}"
    (name,) = names
    unknown = f"no peak of {name} in {precision} is known: set peak_tflops in site.yaml"
    return find_peak(name, precision) or unknown


def find_rates(summary: Summary, peaks: Mapping[str, float]) -> dict[str, Any]:
    """Columns about the arithmetic of devices; none if nobody asks for it.

    `mfu_pct`: model FLOPs utilisation in percent; else `reason` says why it is unknown.
    """
    cell = summary.cell
    model = summary.records[0]["model"] if summary.records else {}
    formula = model.get("flops_by_formula")
    flops = (formula or model.get("flops_per_sample") or 0) / cell.units_per_sample
    if not flops or not (
        cell.device == "cuda" or cell.precision in peaks or cell.unit == "tokens"
    ):
        return {}
    rate = summary.rate * flops / summary.devices / 1e12
    row: dict[str, Any] = {"precision": cell.precision, "tflop_s": rate}
    if cell.unit == "tokens":
        known_by = FORMULA if formula else COUNTED
        row |= {"mflop_per_token": flops / 1e6, "flops_by": known_by}
    peak = peak_of(summary, peaks)
    if isinstance(peak, str):
        return {**row, "reason": peak}
    mfu = 100 * rate / peak
    if mfu > 100:
        reason = f"{rate:.4g} TFLOP/s is above the peak: correct peak_tflops"
        return {**row, "peak_tflop_s": peak, "reason": reason}
    row |= {"peak_tflop_s": peak, "mfu_pct": mfu}
    again = model.get("flops_again", {}).get(cell.checkpointing)
    if again and formula:
        row["hfu_pct"] = (1 + again / formula) * mfu
    return row


def find_peak(gpu: str, precision: str) -> float | None:
    """The rate of a GPU in 10^12 operations per second; None if it is not known here.

    Args:
        gpu: as its driver names it: ``NVIDIA H100 80GB HBM3``.
        precision: of a cell.
    """
    if "MIG" in gpu:
        return None  # a part of the GPU, of unknown size
    for pattern, fp8, half, tf32, fp32 in _PEAKS:
        if re.search(pattern, gpu):
            bf16 = half if tf32 else None
            rates = {"bf16": bf16, "fp16": half, "tf32": tf32, "fp32": fp32}
            return {**rates, "fp8": fp8, "fp8_rowwise": fp8}[precision]
    return None


# --- energy ---------------------------------------------------------------------------

# Drivers renew their counters up to ten times a second, so a shorter window would be
# wrong by more than two percent.
SHORTEST = 5.0  # seconds


def find_energy(summary: Summary) -> dict[str, Any]:
    """Columns of the table about energy and heat of a row that is ok.

    There are none on CPUs whose energy was not read.
    """
    # It imports scipy, which a GPU's first minutes pass without: see tests/gpu.
    from rankbench.results.numbers.statistics import geometric_mean

    records = summary.counted["record"].tolist()
    if not records or not records[0]["ranks"][0]["energy"]:
        return {}
    found = [_energy_of(record) for record in records]
    devices = [one for record in records for one in record["devices"]]
    unknown = [one for one in found if isinstance(one, str)]
    if unknown and summary.cell.device != "cuda":
        return {}
    row = _describe_devices(devices)
    if unknown:
        return {**row, "energy_unknown": unknown[0]}
    joules, watts = zip(*(one for one in found if isinstance(one, tuple)), strict=True)
    own = {"j_per_sample": geometric_mean(joules), "watts": geometric_mean(watts)}
    return {**row, **own}


def _energy_of(record: Record) -> tuple[float, float] | str:
    """Joules of a sample and watts of a device in a launch; or why they are unknown."""
    told = [rank["energy"] for rank in record["ranks"]]
    read = [one for one in told if one["devices"]]
    missing = [str(one["reason"]) for one in told if not one["devices"]]
    if not read:
        return missing[0]
    uuids = [gpu["uuid"] for rank in record["ranks"] for gpu in rank["gpus"]]
    if len(set(uuids)) < len(uuids):
        return "ranks share a GPU, whose counter does not tell them apart"
    if uuids and missing:
        return missing[0]
    seconds = min(one["seconds"] for one in read)
    if seconds < SHORTEST:
        steps = math.ceil(record["steps"] * SHORTEST / seconds)
        return (
            f"a timed window of {seconds:.1f} s is shorter than {SHORTEST:g} s: "
            f"steps: {steps} would suffice"
        )
    joules = sum(one["joules"] for one in read)
    watts = sum(one["joules"] / one["seconds"] for one in read)
    return joules / record["samples"], watts / sum(one["devices"] for one in read)


def _describe_devices(devices: Sequence[Record]) -> dict[str, Any]:
    """What NVML told of the GPUs of the first host, over all launches."""
    clocks = [one.get("sm_clock_mean_mhz") for one in devices]
    heat = [one.get("temperature_max_c") for one in devices]
    reasons = {reason for one in devices for reason in one["throttled"]}
    return {
        "sm_clock_mhz": min((c for c in clocks if c is not None), default=None),
        "temperature_c": max((t for t in heat if t is not None), default=None),
        "throttled": "; ".join(sorted(reasons)) or None,
    }


# --- network --------------------------------------------------------------------------


def find_network(record: Record) -> str | None:
    """``IB with GPUDirect``, ``Socket``, on one host ``P2P/CUMEM``; None if unknown.

    Ranks that went different ways are joined by semicolons.
    """
    direct = {True: " with GPUDirect", False: " without GPUDirect", None: ""}
    ways = set()
    for entry in record["transport"].get("seen") or []:
        nccl = entry["libraries"].get("nccl") or {}
        transports = [str(name) for name in nccl.get("transports") or ()]
        kinds = {name.partition("/")[0] for name in transports}
        if kinds & {"NET", "COLLNET"}:
            way = direct[nccl.get("gpudirect_rdma")]
            # Switches add up data: between hosts SHARP, within a host NVLS.
            adding = {"COLLNET": "SHARP", "NVLS": "NVLS"}
            transports = [f"{nccl.get('network') or 'network'}{way}"]
            transports += [name for kind, name in adding.items() if kind in kinds]
        ways.add(", ".join(transports))
    return "; ".join(sorted(ways - {""})) or None
