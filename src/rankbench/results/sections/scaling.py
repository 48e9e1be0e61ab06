"""How fast cells are, what more devices give, and what they cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from rankbench.results.advice.answer import EFFICIENCY, choose_unit, device_hours
from rankbench.results.elements import plotting
from rankbench.results.elements.plotting import Ends, Mark, Styles
from rankbench.results.elements.section import NAMED, PanelPlot, make_plot_section
from rankbench.results.elements.text import show_estimate
from rankbench.results.numbers.launches import EXCHANGE
from rankbench.results.numbers.result_set import Summary
from rankbench.results.numbers.series import Panel, Series
from rankbench.results.numbers.statistics import Estimate, mean

Find = Callable[[Summary], Estimate | None]

_ROW = 0.25  # inches


def _label(point: Summary) -> str:
    """The throughput, and the bracket of its ratio: launches have no interval."""
    rate = str(show_estimate(point.numbers["throughput"]))
    ratio = point.numbers.get("speedup")
    return f"{rate}   x {show_estimate(ratio)}" if ratio and ratio.interval else rate


def _draw_rates(grid: Sequence[plotting.Axes], panel: Panel, styles: Styles) -> None:
    """Cells by throughput, the fastest first: mean over launches (large) and every
    launch (small). Behind it the speedup with its bracket, which is within rounds: rows
    differ from the base if it excludes 1, however the launches lie.
    """
    (axes,) = grid
    rows = plotting.each_row(panel)
    rows.sort(key=lambda row: -row[1].rate)
    for place, (series, point) in enumerate(rows):
        number, style = point.numbers["throughput"], styles[series.name]
        rates = point.launches["throughput"].tolist()
        plotting.draw_launches(axes, rates, [place] * len(rates), style)
        mark = plotting.Mark(number, Estimate(place))
        plotting.draw_mark(axes, mark, point, style)
    each = [point.launches["throughput"].tolist() for _, point in rows]
    plotting.finish_rows(
        axes,
        [plotting.name_point(*row) for row in rows],
        [_label(point) for _, point in rows],
        # Launches that are no outliers have room.
        end=1.05 * max(r for own in each for r in own if r < 1.5 * np.mean(own)),
        beyond=each,
    )
    axes.set_xlabel(f"{panel.unit}/s")


def per_device(point: Summary) -> Estimate:
    """Throughput of each device."""
    return point.numbers["throughput"].scaled(1 / point.devices)


def speedup(point: Summary) -> Estimate | None:
    """Over the row on one device that the efficiency is relative to."""
    number = point.numbers.get("efficiency")
    return number and number.scaled(point.devices)


def exposed(point: Summary) -> Estimate | None:
    """Percent of a step that is communication which nothing hides.

    None for a strategy whose phases do not tell.
    """
    each = [own for own in point.counted["phase_ms"] if EXCHANGE in own]
    shares = [100 * own[EXCHANGE] / sum(own.values()) for own in each]
    return mean(shares) if shares else None


def cost(point: Summary) -> tuple[Estimate, Estimate]:
    """Hours, and device-hours, for a million samples or tokens."""
    hours = device_hours(point)
    return hours.scaled(1 / point.devices), hours


def _rows(point: Summary) -> Iterator[dict[str, Any]]:
    """A row for each cell; diagnostics.csv has its launches."""
    hours, of_devices = cost(point)
    base = point.efficiency_base
    yield {
        "hosts": point.cell.size.nodes,
        "devices": point.devices,
        "unit": f"{point.cell.unit}/s",
        "per_device": per_device(point),
        "ideal": base and base.rate,
        "over_one_device": speedup(point),
        "hours": hours,
        "device_hours": of_devices,
        "exposed_pct": exposed(point),
    }


def _launches(point: Summary) -> list[float]:
    """Throughput of each device in each launch."""
    return (point.launches["throughput"] / point.devices).tolist()


def _compares(find: Find) -> Callable[[Panel], bool]:
    """Whether the number is known for different numbers of devices."""
    return lambda panel: len({p.devices for p in panel.points if find(p)}) > 1


def _over_devices(
    find: Find,
    finish: Callable[[plotting.Axes, Panel, Sequence[int]], None],
    launches: Callable[[Summary], Sequence[float]] = lambda _: (),
) -> Callable[[Sequence[plotting.Axes], Panel, Styles], Ends]:
    """Draw a number over devices.

    Args:
        find: the number of a cell.
        finish: draws what else belongs to a panel, and finishes the vertical axis; gets
            the numbers of devices that occur.
        launches: the same number of each launch.
    """

    def draw(grid: Sequence[plotting.Axes], panel: Panel, styles: Styles) -> Ends:
        (axes,) = grid
        at = plotting.place_series(panel)

        def mark(series: Series, point: Summary) -> Mark | None:
            if number := find(point):
                x = Estimate(at(series, point))
                return plotting.Mark(x, number, launches(point))
            return None

        ends = plotting.draw_series(axes, panel, styles, mark)
        devices = {point.devices for point in panel.points if find(point)}
        finish(axes, panel, plotting.scale_devices(axes, devices))
        return ends

    return draw


def _finish_per_device(
    axes: plotting.Axes, panel: Panel, devices: Sequence[int]
) -> None:
    """The base, and the share of it that a sensible topology keeps."""
    bases = [point.efficiency_base for point in panel.points]
    ideals = {base.rate for base in bases if base}
    for rate in ideals:
        axes.axhline(rate, color="0.5", ls="--", lw=1, zorder=1)
        axes.axhline(EFFICIENCY * rate, color="0.5", ls=":", lw=1, zorder=1)
    rates = [rate for point in panel.points for rate in _launches(point)]
    axes.set_ylim(0, 1.08 * max([*rates, *ideals]))
    axes.yaxis.set_major_formatter(plotting.PLAIN)
    axes.set_ylabel(f"{panel.unit}/s of each device")


def _finish_speedup(axes: plotting.Axes, panel: Panel, devices: Sequence[int]) -> None:
    axes.plot(devices, devices, "--", color="0.5", lw=1, zorder=1)
    plotting.scale_by_logarithm(axes)
    axes.set_ylabel("speedup over one device")


def _finish_exposed(axes: plotting.Axes, panel: Panel, devices: Sequence[int]) -> None:
    axes.set_ylim(bottom=0)
    axes.set_ylabel("% of a step")


def _draw_cost(grid: Sequence[plotting.Axes], panel: Panel, styles: Styles) -> Ends:
    """Device-hours against hours for a million samples or tokens: lower is cheaper,
    further left is faster. Dotted: rows that no other row beats in both.
    """
    (axes,) = grid
    cheapest = min(map(device_hours, panel.points), key=lambda one: one.value)
    factor, unit = choose_unit(cheapest)

    def place(point: Summary) -> tuple[Estimate, Estimate]:
        time, price = cost(point)
        return time.scaled(factor), price.scaled(factor)

    ends = plotting.draw_series(
        axes,
        panel,
        styles,
        lambda _, point: plotting.Mark(*place(point)),
        names_points=len(panel.points) <= NAMED,
    )
    least, best = float("inf"), []
    for time, price in sorted((x.value, y.value) for x, y in map(place, panel.points)):
        if price < least:
            least = price
            best.append((time, price))
    axes.plot(*zip(*best, strict=True), color="0.5", ls=":", lw=1, zorder=1)
    axes.margins(0.1)
    for axis in ("x", "y"):
        plotting.scale_by_logarithm(axes, axis)
    axes.set_xlabel(f"{unit} for a million {panel.unit}")
    axes.set_ylabel(f"device-{unit} for the same")
    return ends


_PLOTS = (
    PanelPlot(
        name="throughput",
        question="Which is the fastest?",
        height=lambda panel: _ROW * len(panel.points) + 0.7,
        draw=_draw_rates,
        explains="launches",
        always=True,
    ),
    PanelPlot(
        name="per_device",
        question="How much does each device still do?",
        caption=(
            "Throughput of a device: mean over launches (large) and every launch "
            "(small). Dashed: the base on one device; "
            f"dotted: {EFFICIENCY:g} of it. Series with equally many devices stand "
            "beside each other."
        ),
        says=_compares(per_device),
        draw=_over_devices(per_device, _finish_per_device, _launches),
        lines={"base on one device": "--", f"{EFFICIENCY:g} of it": ":"},
        explains="launches",
    ),
    PanelPlot(
        name="scaling",
        question="How much faster are more devices?",
        caption=(
            "Speedup over the base on one device, with the brackets of the table, "
            "beside the ideal. Both axes are logarithmic: a constant efficiency below "
            "1 is a line below the ideal."
        ),
        says=_compares(speedup),
        draw=_over_devices(speedup, _finish_speedup),
        lines={"ideal": "--"},
    ),
    PanelPlot(
        name="cost",
        question="What does it cost to be faster?",
        says=_compares(per_device),
        draw=_draw_cost,
        lines={"none is both faster and cheaper": ":"},
        explains="values",
    ),
    PanelPlot(
        name="communication",
        question="How much of a step is communication that nothing hides?",
        caption=(
            "Mean share of a step from a rank's last gradient to the end of backward. "
            "Strategies that communicate within forward and backward are not here."
        ),
        says=_compares(exposed),
        draw=_over_devices(exposed, _finish_exposed),
    ),
)

SECTION = make_plot_section(
    "Speed and scaling",
    1,
    _PLOTS,
    columns={
        **{"hosts": int, "devices": int, "unit": str},
        **{"per_device": float, "ideal": float, "over_one_device": Estimate},
        **{"hours": float, "device_hours": float, "exposed_pct": Estimate},
    },
    rows=_rows,
)
