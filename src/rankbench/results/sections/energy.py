"""How much energy a sample takes, and what power, clocks and heat the devices had."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rankbench.record import Record
from rankbench.results.elements import plotting
from rankbench.results.elements.panels import PanelPlot, draw_panels
from rankbench.results.elements.plotting import Ends, Mark, Styles
from rankbench.results.elements.section import Content, Section
from rankbench.results.numbers.result_set import ResultSet
from rankbench.results.numbers.series import Panel, Series
from rankbench.results.numbers.statistics import Estimate, geometric_mean
from rankbench.results.numbers.summary import Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Drivers renew their counters up to ten times a second, so a shorter window would be
# wrong by more than two percent.
SHORTEST = 5.0  # seconds


def make(found: ResultSet) -> Content | None:
    """A row for each cell on GPUs, or on CPUs whose energy was read."""
    rows = [
        _row(summary)
        for summary in found.measured
        if summary.launches[0].record["ranks"][0].get("energy")
    ]
    on_gpus = {s.id for s in found.measured if s.cell.device == "cuda"}
    if not any("j_per_sample" in row or row["cell"] in on_gpus for row in rows):
        return None
    return Content(rows=rows, drawings=list(draw_panels(found, [_PLOT])))


def _row(summary: Summary) -> dict[str, Any]:
    records = [one.launch.record for one in summary.counted]
    devices = [one for record in records for one in record.get("devices") or ()]
    row: dict[str, Any] = {"cell": summary.id, **_describe_devices(devices)}
    found = [_measure(record) for record in records]
    known = [one for one in found if isinstance(one, tuple)]
    reasons = [one for one in found if isinstance(one, str)]
    if reasons:
        return row | {"reason": reasons[0]}
    row["j_per_sample"] = geometric_mean([joules for joules, _ in known])
    row["watts"] = geometric_mean([watts for _, watts in known])
    return row


def _points(summary: Summary) -> Iterator[dict[str, Any]]:
    """Throughput and energy of a cell whose energy is known."""
    if not summary.launches[0].record["ranks"][0].get("energy"):
        return
    if joules := _row(summary).get("j_per_sample"):
        rate = summary.numbers["throughput"]
        rate = rate.scaled(1 / summary.cell.units_per_sample)
        yield {"throughput": rate, "j_per_sample": joules}


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


def _draw(grid: Sequence[Axes], panel: Panel, styles: Styles) -> Ends:
    (axes,) = grid

    def mark(_: Series, point: Summary) -> Mark | None:
        return next((plotting.Mark(*row.values()) for row in _points(point)), None)

    ends = plotting.draw_series(axes, panel, styles, mark, names_points=True)
    axes.set_xlim(left=0)
    axes.set_ylim(0, 1.08 * axes.get_ylim()[1])
    axes.set_xlabel("samples/s")
    axes.set_ylabel("joules per sample")
    return ends


_PLOT = PanelPlot(
    name="energy",
    question="How much energy does it take to be faster?",
    caption="Energy of a sample against throughput: lower and further right is better.",
    columns=dict.fromkeys(("throughput", "j_per_sample"), Estimate),
    rows=_points,
    says=lambda panel: sum(len([*_points(point)]) for point in panel.points) > 1,
    draw=_draw,
)

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
    plots=(_PLOT.name,),
)
