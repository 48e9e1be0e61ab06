"""Every timed step of every launch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rankbench.results.elements.panels import make_plot_section
from rankbench.results.numbers.series import Panel
from rankbench.results.numbers.summary import Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROW = 0.34  # inches
_WHISKERS = (5, 95)

# The axis ends at this multiple of the largest 95 % quantile of a cell.
_BEYOND = 1.5

_LEVELS = {
    "p5_ms": 0.05,
    "p25_ms": 0.25,
    "median_ms": 0.5,
    "p75_ms": 0.75,
    "p95_ms": 0.95,
}


def _rows(point: Summary) -> Iterator[dict[str, Any]]:
    """Quantiles of each launch."""
    levels = list(_LEVELS.values())
    for launch, one in zip(point.row.launches, point.measures, strict=True):
        quantiles = np.quantile(1e3 * one.steps_s, levels)
        yield {"launch": launch.number, **dict(zip(_LEVELS, quantiles, strict=True))}


def _draw(panels: Sequence[Panel], width: float) -> Figure:
    """Quartiles, 5 % to 95 %, the other steps as dots; medians of the launches."""
    from rankbench.results.elements import plotting

    label = "ms of a step (of its slowest rank)"
    figure = plotting.draw_rows(
        panels,
        _draw_boxes,
        width=width,
        row=_ROW,
        label=label,
        values=_steps_ms,
        limit=lambda steps: _BEYOND * float(np.quantile(steps, 0.95)),
    )
    handles = [
        plotting.Line2D([], [], color="0.75", lw=7, label="middle half of all steps"),
        plotting.Line2D([], [], color="0.3", lw=1, label="5 % to 95 %"),
        plotting.make_handle("median of a launch", "|", color="C3", ms=9, mew=1.6),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def _steps_ms(point: Summary) -> Sequence[float]:
    steps: list[float] = (
        1e3 * np.concatenate([one.steps_s for one in point.measures])
    ).tolist()
    return steps


def _draw_boxes(axes: Axes, point: Summary, place: int) -> None:
    axes.boxplot(
        _steps_ms(point),
        orientation="horizontal",
        positions=[place],
        widths=0.6,
        whis=_WHISKERS,
        patch_artist=True,
        manage_ticks=False,
        boxprops={"facecolor": "0.85", "edgecolor": "0.6"},
        whiskerprops={"color": "0.3"},
        capprops={"color": "0.3"},
        medianprops={"color": "0.3"},
        flierprops={"marker": ".", "ms": 2, "mec": "0.45"},
    )
    medians = [float(np.median(1e3 * one.steps_s)) for one in point.measures]
    axes.plot(medians, [place] * len(medians), "|", color="C3", ms=9, mew=1.3)


SECTION = make_plot_section(
    name="steps",
    title="Times of steps",
    reading=(
        "Every timed step of every launch, and the median of each launch. If launches "
        "differ by more than their steps do, more steps would not have shown it. The "
        "axis ends at 1.5 times the largest 95 % quantile of a cell; steps beyond are "
        "counted at its end."
    ),
    order=5,
    columns={"launch": int, **dict.fromkeys(_LEVELS, float)},
    rows=_rows,
    draw=_draw,
)
