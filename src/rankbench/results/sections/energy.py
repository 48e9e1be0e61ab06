"""How much energy a sample takes, and what power, clocks and heat the devices had."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from rankbench.record import Record
from rankbench.results.elements.names import shorten
from rankbench.results.elements.section import (
    Content,
    Drawing,
    Row,
    Section,
    make_frame,
)
from rankbench.results.numbers.result_set import ResultSet
from rankbench.results.numbers.statistics import Estimate, geometric_mean
from rankbench.results.numbers.summary import Summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Drivers renew their counters up to ten times a second, so a shorter window would be
# wrong by more than two percent.
SHORTEST = 5.0  # seconds

_HEIGHT = 2.9

# A legend with more cells would be larger than the plot.
_NAMED = 24
_POINTS = {"cell": str, "throughput": Estimate, "j_per_sample": Estimate}


def make(found: ResultSet) -> Content | None:
    """A row for each cell on GPUs, or on CPUs whose energy was read."""
    rows = [
        _row(summary)
        for summary in found.measured
        if summary.row.launches[0].record["ranks"][0].get("energy")
    ]
    on_gpus = {s.row.id for s in found.measured if s.row.cell.device == "cuda"}
    if not any("j_per_sample" in row or row["cell"] in on_gpus for row in rows):
        return None
    measured = [row for row in rows if "j_per_sample" in row]
    if len(measured) < 2:
        return Content(rows=rows)
    names, _ = shorten([summary.row.id for summary in found.summaries])
    rates = {
        summary.row.id: summary.numbers["throughput"].scaled(
            1 / summary.row.cell.units_per_sample
        )
        for summary in found.measured
    }
    points = [
        {
            "cell": row["cell"],
            "throughput": rates[row["cell"]],
            "j_per_sample": row["j_per_sample"],
        }
        for row in measured
    ]
    drawing = Drawing(
        name="energy",
        caption="Energy of a sample against throughput: lower and further right is "
        "better.",
        frame=partial(make_frame, _POINTS, points),
        draw=partial(_draw, points, names),
    )
    return Content(rows=rows, drawings=[drawing])


def _row(summary: Summary) -> dict[str, Any]:
    records = [launch.record for launch in summary.counted_launches]
    devices = [one for record in records for one in record.get("devices") or ()]
    row: dict[str, Any] = {"cell": summary.row.id, **_describe_devices(devices)}
    found = [_measure(record) for record in records]
    known = [one for one in found if isinstance(one, tuple)]
    reasons = [one for one in found if isinstance(one, str)]
    if reasons:
        return row | {"reason": reasons[0]}
    row["j_per_sample"] = geometric_mean([joules for joules, _ in known])
    row["watts"] = geometric_mean([watts for _, watts in known])
    return row


def _measure(record: Record) -> tuple[float, float] | str:
    """Joules of a sample and watts of a device in a launch; or why they are unknown."""
    told = [rank["energy"] for rank in record["ranks"]]
    read = [one for one in told if one["devices"]]
    if not read:
        return str(told[0]["reason"])
    uuids = [gpu["uuid"] for rank in record["ranks"] for gpu in rank.get("gpus") or ()]
    if len(set(uuids)) < len(uuids):
        return "ranks share a GPU, whose counter does not tell them apart"
    on_gpus = bool(uuids)
    missing = [one["reason"] for one in told if not one["devices"]] if on_gpus else []
    if missing:
        return str(missing[0])
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
    reasons = {reason for one in devices for reason in one.get("throttled") or ()}
    return {
        "sm_clock_mhz": min((c for c in clocks if c is not None), default=None),
        "temperature_c": max((t for t in heat if t is not None), default=None),
        "throttled": "; ".join(sorted(reasons)) or None,
    }


def _draw(points: Sequence[Row], names: dict[str, str], width: float) -> Figure:
    import seaborn as sns

    from rankbench.results.elements import plotting

    figure, (axes,) = plotting.make_figure([_HEIGHT], width=width)
    cells = [point["cell"] for point in points]
    colors, markers = plotting.choose_colors(cells), plotting.choose_markers(cells)
    for point in points:
        x, energy = point["throughput"], point["j_per_sample"]
        color, marker = colors[point["cell"]], markers[point["cell"]]
        plotting.draw_interval(axes, x.value, energy, color=color)
        plotting.draw_interval(axes, energy.value, x, color=color, horizontal=True)
        axes.plot(x.value, energy.value, marker, ms=5.5, color=color)
    if len(cells) <= _NAMED:
        handles = [
            plotting.make_handle(names[cell], markers[cell], color=colors[cell])
            for cell in cells
        ]
        plotting.add_legend(figure, handles)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("samples/s")
    axes.set_ylabel("joules per sample")
    sns.despine(ax=axes)
    return figure


SECTION = Section(
    name="energy",
    title="Energy",
    reading=(
        "Energy of all devices between two readings of their counters, just before and "
        "just after the timed window, over the samples of the window; means over "
        "launches. GPUs: by NVML, of the whole board. CPUs: by RAPL, of all packages "
        "of the hosts, whatever else runs there. Power: the mean of one device. Clock, "
        "temperature and reasons for lower clocks: the GPUs of the first host, looked "
        "at every second; the lowest mean clock and the highest temperature."
    ),
    order=73,
    make=make,
    columns={
        "cell": (str, "cell"),
        "j_per_sample": (Estimate, "J/sample"),
        "watts": (Estimate, "W per device"),
        "sm_clock_mhz": (float, "SM clock (MHz)"),
        "temperature_c": (float, "temperature (C)"),
        "throttled": (str, "lower clocks because of"),
        "reason": (str, "why not"),
    },
    plots=("energy",),
)
