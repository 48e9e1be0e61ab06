"""What topologies that were not measured would give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from rankbench.results.advice.choice import Facts
from rankbench.results.elements.panels import counts_tokens
from rankbench.results.elements.section import (
    Content,
    Drawing,
    Section,
    make_frame,
)
from rankbench.results.elements.text import Grid, Note, Text, show_estimate
from rankbench.results.numbers.result_set import ResultSet
from rankbench.results.numbers.series import Panel, Series
from rankbench.results.numbers.statistics import Estimate, round_off

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from rankbench.results.prediction.predict import Prediction

_TITLE = "Predicted topologies"
_HEIGHT = 3.6
_MILLION = 1e6

_HEADINGS = {
    "throughput": "{unit}/s",
    "step_ms": "step (ms)",
    "efficiency": "efficiency",
    "memory_mib": "memory (MiB)",
    "hours": "device-hours per million {unit}",
    "cost": "cost per million {unit}",
}

_COLUMNS: dict[str, type] = {
    **dict.fromkeys(("panel", "series", "cell", "kind"), str),
    "devices": int,
    "throughput": Estimate,
    "ideal": float,
}

# A series, its rows that predictions rest on, and its predictions.
_Line = tuple[Panel, Series, Sequence["Prediction"]]


def make(found: ResultSet) -> Content | None:
    """A row for each topology that the experiment wants to be predicted."""
    if not found.results.targets:
        return None
    from rankbench.results.prediction.predict import predict

    made = list(predict(found.summaries, found.results.targets))
    price = found.results.price
    rows = []
    for one in made:
        rows.append(
            {
                "cell": one.target.id,
                "topology": one.target.cell.topology,
                "method": one.method or None,
                "fitted": " ".join(summary.row.id for summary in one.fitted),
                "refused": one.refused,
                **in_numbers(one, price),
            }
        )
    lines = _find_lines(found, made)
    drawing = Drawing(
        name="prediction",
        caption=(
            "Measured medians (filled) and predictions (hollow) with their 95 % "
            "intervals. Dashed: the ideal."
        ),
        frame=lambda: _frame(lines),
        draw=lambda width: _draw(lines, width),
    )
    return Content(
        rows=rows,
        grids=[
            _show([one for one in made if one.target.cell.unit == unit], price, unit)
            for unit in sorted({one.target.cell.unit for one in made})
        ],
        notes=in_sentences(made),
        drawings=[drawing] if lines else [],
        facts={"predictions": describe(made, price)},
    )


def in_numbers(one: Prediction, price: tuple[float, str] | None) -> dict[str, Estimate]:
    """The predicted numbers by name; none if the prediction is refused.

    Args:
        price: of a device-hour, and its currency.

    Returns:
        Those of `Prediction`; `hours` are device-hours of a million samples or tokens,
        `cost` is their price, in the currency.
    """
    if one.throughput is None:
        return {}
    devices = one.target.cell.size.devices

    def hours(rate: float) -> float:
        return devices * _MILLION / rate / 3600

    low, high = one.throughput.interval or (one.throughput.value,) * 2
    found = {
        "throughput": one.throughput,
        "step_ms": one.step_ms,
        "efficiency": one.efficiency,
        "memory_mib": one.memory_mib,
        "hours": Estimate(hours(one.throughput.value), hours(high), hours(low)),
    }
    if price is not None:
        found["cost"] = found["hours"].scaled(price[0]) if found["hours"] else None
    return {name: number for name, number in found.items() if number is not None}


def describe(
    predictions: Sequence[Prediction], price: tuple[float, str] | None
) -> list[Facts]:
    """Each prediction as JSON values; `refused` is null where there are numbers."""
    return [
        {
            "cell": one.target.id,
            "topology": one.target.cell.topology,
            "devices": one.target.cell.size.devices,
            # Samples need no word.
            **({} if unit == "samples" else {"unit": f"{unit}/s"}),
            "refused": one.refused,
            "method": one.method or None,
            "why_totals": one.why,
            "fitted": [summary.row.id for summary in one.fitted],
            "doublings": round_off(one.doublings),
            **{
                name: number.to_json()
                for name, number in in_numbers(one, price).items()
            },
            "currency": price[1] if price else None,
        }
        for one in predictions
        for unit in [one.target.cell.unit]
    ]


def in_sentences(predictions: Sequence[Prediction]) -> list[Note]:
    """What predictions rest on; then for each reason what is not predicted."""
    alike: dict[tuple[str, str], list[str]] = {}
    for one in predictions:
        rows = ", ".join(summary.row.id for summary in one.fitted)
        term, name = "predicted", one.target.id
        if one.refused:
            term, text = "not predicted", one.refused
        elif one.why is None:
            text = f"from what the steps of {rows} are made of"
        else:
            text = f"from the throughput of {rows} alone, because {one.why}"
        if not one.refused:
            name += f" ({2**one.doublings:.3g} times the devices)"
        alike.setdefault((term, text), []).append(name)
    found = sorted(alike.items(), key=lambda item: item[0][0], reverse=True)
    return [Note(term, f"{', '.join(names)}: {text}.") for (term, text), names in found]


def _show(
    made: Sequence[Prediction], price: tuple[float, str] | None, unit: str
) -> Grid:
    numbers = [in_numbers(one, price) for one in made]
    shown = [name for name in _HEADINGS if any(name in each for each in numbers)]
    headings = {
        _HEADINGS[name].format(unit=unit)
        + (f" ({price[1]})" if name == "cost" and price else ""): True
        for name in shown
    }
    rows = [
        [Text(one.target.id), *(show_estimate(each.get(name)) for name in shown)]
        for one, each in zip(made, numbers, strict=True)
        if each
    ]
    return Grid(_TITLE, {"cell": False, **headings}, rows)


def _find_lines(found: ResultSet, made: Sequence[Prediction]) -> list[_Line]:
    """The series that have predictions, in the order of the plots."""
    lines: list[_Line] = []
    for panel in found.panels:
        for series in panel.series:
            ids = {point.row.id for point in series.points}
            own = [one for one in made if one.fitted and one.fitted[-1].row.id in ids]
            if own:
                own.sort(key=lambda one: one.target.cell.size.devices)
                lines.append((panel, series, own))
    return lines


def _frame(lines: Sequence[_Line]) -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    tokens = counts_tokens(panel for panel, _, _ in lines)
    for panel, series, own in lines:
        base = own[0].fitted[-1].efficiency_base
        points = [
            ("measured", point.row.id, point.row.devices, point.numbers["throughput"])
            for point in series.points
        ]
        points += [
            ("predicted", one.target.id, one.target.cell.size.devices, one.throughput)
            for one in own
            if one.throughput
        ]
        for kind, cell, devices, throughput in points:
            rows.append(
                {
                    "panel": panel.title,
                    "series": series.name,
                    "cell": cell,
                    "kind": kind,
                    "devices": devices,
                    "throughput": throughput,
                    "ideal": base and devices * base.throughput.value,
                    **({"unit": f"{panel.unit}/s"} if tokens else {}),
                }
            )
    return make_frame({**_COLUMNS, "unit": str} if tokens else _COLUMNS, rows)


def _draw(lines: Sequence[_Line], width: float) -> Figure:
    from rankbench.results.elements import plotting

    titles = list(dict.fromkeys(panel.title for panel, _, _ in lines))
    figure, grid = plotting.make_figure([_HEIGHT] * len(titles), width=width)
    colors = plotting.choose_colors(
        list(dict.fromkeys(series.name for _, series, _ in lines))
    )
    markers = plotting.choose_markers(list(colors))
    for axes, title in zip(grid, titles, strict=True):
        ideals = set()
        for panel, series, own in lines:
            if panel.title == title:
                color, marker = colors[series.name], markers[series.name]
                _draw_line(axes, series, own, color, marker)
                if base := own[0].fitted[-1].efficiency_base:
                    ends = (1, max(one.target.cell.size.devices for one in own))
                    ideals.add((base.throughput.value, ends))
        for rate, ends in ideals:
            values = [count * rate for count in ends]
            axes.plot(ends, values, "--", color="0.5", lw=1, zorder=1)
        _finish(axes, title, [one for one in lines if one[0].title == title])
    grid[-1].set_xlabel("devices")
    handles = [plotting.make_handle(n, markers[n], color=colors[n]) for n in colors]
    plotting.add_legend(
        figure,
        [
            *handles,
            plotting.make_handle("predicted", "o", mfc="white"),
            plotting.Line2D([], [], lw=4, alpha=0.3, color="0.4", label="95 %"),
            plotting.Line2D([], [], color="0.5", ls="--", lw=1, label="ideal"),
        ],
    )
    return figure


def _draw_line(
    axes: Axes, series: Series, own: Sequence[Prediction], color: Any, marker: str
) -> None:
    """Measured points, then a band that opens from the last row of the fit."""
    from rankbench.results.elements import plotting

    for point in series.points:
        number, x = point.numbers["throughput"], point.row.devices
        plotting.draw_interval(axes, x, number, color=color)
        axes.plot([x], [number.value], marker, ms=5.5, color=color, zorder=4)
    last = own[0].fitted[-1]
    start = last.numbers["throughput"]
    points = [(last.row.devices, Estimate(start.value, start.value, start.value))]
    points += [
        (one.target.cell.size.devices, one.throughput) for one in own if one.throughput
    ]
    devices = [count for count, _ in points]
    y = [number.value for _, number in points]
    axes.plot(devices, y, color=color, lw=1.1, ls=":", zorder=2)
    axes.plot(
        devices[1:], y[1:], marker, ms=5.5, mec=color, mfc="white", ls="", zorder=4
    )
    ends = [number.interval or (number.value,) * 2 for _, number in points]
    low, high = zip(*ends, strict=True)
    axes.fill_between(devices, low, high, color=color, alpha=0.15)


def _finish(axes: Axes, title: str, lines: Sequence[_Line]) -> None:
    import seaborn as sns

    from rankbench.results.elements import plotting

    devices = sorted(
        {point.row.devices for _, series, _ in lines for point in series.points}
        | {one.target.cell.size.devices for _, _, own in lines for one in own}
    )
    plotting.write_title(axes, title)
    axes.set_xscale("log", base=2)
    axes.set_xlim(devices[0] / 2**0.25, devices[-1] * 2**0.25)
    axes.set_xticks(devices, [str(count) for count in devices])
    axes.minorticks_off()
    axes.grid(visible=False, axis="x")
    axes.set_ylabel(f"{lines[0][0].unit}/s")
    plotting.scale_by_logarithm(axes)
    sns.despine(ax=axes)


SECTION = Section(
    name="prediction",
    title=_TITLE,
    reading=(
        "Topologies that were not measured, predicted from rows that differ in "
        "topology alone. Each number has an interval that should hold what a "
        "measurement gives in 95 of 100 cases; it comes from what the same method "
        "misses if a measured row is hidden from it, and widens with the distance. "
        "docs/predicting.md explains the method."
    ),
    order=21,
    make=make,
    columns={
        **dict.fromkeys(("cell", "topology", "method", "fitted", "refused"), str),
        **dict.fromkeys(_HEADINGS, Estimate),
    },
    appendix=False,
    plots=("prediction",),
)
