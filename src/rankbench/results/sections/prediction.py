"""What topologies that were not measured would give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from rankbench.results.elements import plotting
from rankbench.results.elements.plotting import Ends, Mark, Style, Styles
from rankbench.results.elements.section import Content, PanelPlot, Section, draw_panels
from rankbench.results.elements.text import Note
from rankbench.results.numbers.result_set import ResultSet, Summary
from rankbench.results.numbers.series import Panel, Series
from rankbench.results.numbers.statistics import Estimate, round_off

if TYPE_CHECKING:
    from rankbench.results.prediction.predict import Prediction


def make(found: ResultSet) -> Content | None:
    """Topologies that were not measured, predicted from rows that differ in topology
    alone. Each number has an interval that should hold what a measurement gives in 95
    of 100 cases; it comes from what the same method misses if a measured row is hidden
    from it, and widens with the distance. docs/predicting.md explains the method.
    """
    if not found.targets:
        return None
    from rankbench.results.prediction.predict import predict

    made = list(predict(found.rows, found.targets, found.price))
    drawings = list(draw_panels(found, [_plot(made)]))
    return replace(describe(made), drawings=drawings)


def describe(made: Sequence[Prediction]) -> Content:
    """A row for each prediction, and what they rest on."""
    rows: list[dict[str, Any]] = [
        {
            "cell": one.target.id,
            "topology": one.target.cell.topology,
            "devices": one.target.cell.size.devices,
            "unit": f"{one.target.cell.unit}/s",
            "refused": one.refused,
            "method": one.method or None,
            "why_totals": one.why,
            "fitted": " ".join(summary.id for summary in one.fitted),
            "doublings": round_off(one.doublings),
            **one.numbers,
            "currency": one.currency,
        }
        for one in made
    ]
    alike: dict[str, list[str]] = {}
    for one in made:
        if not one.refused:
            fitted = ", ".join(summary.id for summary in one.fitted)
            text = f"from what the steps of {fitted} are made of"
            if one.why is not None:
                text = f"from the throughput of {fitted} alone, because {one.why}"
            name = f"{one.target.id} ({2**one.doublings:.3g} times the devices)"
            alike.setdefault(text, []).append(name)
    notes = [
        Note("predicted", f"{', '.join(names)}: {text}.")
        for text, names in alike.items()
    ]
    return Content(rows=rows, notes=notes)


def _plot(made: Sequence[Prediction]) -> PanelPlot:
    """Measured and predicted throughput over devices."""
    by_row: dict[str, list[Prediction]] = {}
    for one in sorted(made, key=lambda one: one.target.cell.size.devices):
        if one.throughput:
            by_row.setdefault(one.fitted[-1].id, []).append(one)

    return PanelPlot(
        name="prediction",
        question="What would more devices give?",
        caption=(
            "Measured means (filled) and predictions (hollow) with their 95 % "
            "intervals. Dashed: the ideal."
        ),
        says=lambda panel: any(point.id in by_row for point in panel.points),
        draw=partial(_draw, by_row),
        lines={"ideal": "--"},
    )


def _draw(
    by_row: Mapping[str, Sequence[Prediction]],
    grid: Sequence[plotting.Axes],
    panel: Panel,
    styles: Styles,
) -> Ends:
    """Measured points, then a band that opens from the last row of the fit."""
    (axes,) = grid

    def measured(_: Series, point: Summary) -> Mark:
        devices = Estimate(float(point.devices))
        return plotting.Mark(devices, point.numbers["throughput"])

    ends = plotting.draw_series(axes, panel, styles, measured)
    devices = {point.devices for point in panel.points}
    for series, point in plotting.each_row(panel):
        if own := by_row.get(point.id):
            style, last = styles[series.name], measured(series, point)
            start = last.y.value
            marks = [last._replace(y=Estimate(start, start, start))]
            for each in own:
                devices.add(each.target.cell.size.devices)
                x = Estimate(float(each.target.cell.size.devices))
                marks.append(plotting.Mark(x, each.throughput or last.y))
            _draw_band(axes, marks, style)
            ends = [end for end in ends if end[1] != series.name]
            ends.append((marks[-1], series.name, style))
    counts = plotting.scale_devices(axes, devices)
    for base in {p.efficiency_base for p in panel.points if p.efficiency_base}:
        ideal = [count * base.rate for count in counts]
        axes.plot(counts, ideal, "--", color="0.5", lw=1, zorder=1)
    plotting.scale_by_logarithm(axes)
    axes.set_ylabel(f"{panel.unit}/s")
    return ends


def _draw_band(axes: plotting.Axes, marks: Sequence[Mark], style: Style) -> None:
    x, y = plotting.places(marks)
    axes.plot(x, y, color=style.color, lw=1.1, ls=":", zorder=2)
    hollow: dict[str, Any] = {"ls": "", "ms": 5.5, "mec": style.color, "mfc": "white"}
    axes.plot(x[1:], y[1:], style.marker, **hollow, zorder=4)
    ends = [mark.y.interval or (mark.y.value,) * 2 for mark in marks]
    low, high = zip(*ends, strict=True)
    axes.fill_between(x, low, high, color=style.color, alpha=0.15)


SECTION = Section(
    title="Predicted topologies",
    order=21,
    make=make,
    columns={
        "cell": (str, "cell"),
        "topology": str,
        "devices": int,
        "unit": (str, "unit"),
        "refused": (str, "not predicted"),
        **dict.fromkeys(("method", "why_totals", "fitted"), str),
        "doublings": float,
        "throughput": (Estimate, "throughput"),
        "step_ms": (Estimate, "step (ms)"),
        "efficiency": (Estimate, "efficiency"),
        "memory_mib": (Estimate, "memory (MiB)"),
        "hours": (Estimate, "device-hours per million"),
        "cost": (Estimate, "cost per million"),
        "currency": (str, "currency"),
    },
)
