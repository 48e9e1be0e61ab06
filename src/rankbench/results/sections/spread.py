"""Plots of what a median hides: the steps of each cell, and the memory of each rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rankbench.results.elements.panels import draw_rows
from rankbench.results.numbers.measures import Measures, peak_memory
from rankbench.results.numbers.series import Panel
from rankbench.results.numbers.summary import Summary
from rankbench.results.read.launches import Launch

_ROW = 0.34
WHISKERS = (5, 95)

_LAUNCH = ("panel", "series", "cell", "launch")
STEP_COLUMNS = (*_LAUNCH, "p5_ms", "p25_ms", "median_ms", "p75_ms", "p95_ms")
MEMORY_COLUMNS = (*_LAUNCH, "rank", "mib")


def draw_steps(panels: Sequence[Panel], *, width: float) -> Figure:
    """Time of every step: quartiles, 5 % to 95 %, the rest as dots; launches' medians.

    Args:
        panels: at least one.
        width: of the figure, in inches.

    Raises:
        ValueError: the steps of a launch are damaged; the message names the file.
    """
    label = "ms of a step (of its slowest rank)"
    figure = draw_rows(panels, _draw_boxes, width=width, row=_ROW, label=label)
    median = Line2D([], [], color="C3", marker="|", ls="", ms=9, mew=1.6)
    median.set_label("median of a launch")
    box = Line2D([], [], color="0.75", lw=7, label="middle half of all steps")
    whisker = Line2D([], [], color="0.3", lw=1, label="5 % to 95 %")
    figure.legend(handles=[box, whisker, median], loc="outside lower center", ncols=3)
    return figure


def make_steps_frame(panels: Sequence[Panel]) -> pd.DataFrame:
    """The data of `draw_steps`: quantiles of each launch.

    Raises:
        ValueError: the steps of a launch are damaged; the message names the file.
    """
    levels = (0.05, 0.25, 0.5, 0.75, 0.95)
    rows = [
        (*place, *np.quantile(1e3 * measured.steps_s, levels))
        for place, _, measured in _launches(panels)
    ]
    types = dict.fromkeys(STEP_COLUMNS[4:], "float64")
    return pd.DataFrame(rows, columns=list(STEP_COLUMNS)).astype(types)


def make_memory_frame(panels: Sequence[Panel]) -> pd.DataFrame:
    """The data of `draw_memory`: a row for each rank of each launch."""
    rows = [
        (*place, rank["rank"], peak_memory([rank]))
        for place, launch, _ in _launches(panels)
        for rank in launch.record["ranks"]
    ]
    return pd.DataFrame(rows, columns=list(MEMORY_COLUMNS)).astype({"mib": "float64"})


def _launches(
    panels: Sequence[Panel],
) -> Iterator[tuple[tuple[str, str, str, int], Launch, Measures]]:
    """Every launch, after what `_LAUNCH` says of it."""
    for panel in panels:
        for series in panel.series:
            for point in series.points:
                pairs = zip(point.row.launches, point.measures, strict=True)
                for launch, measured in pairs:
                    place = (panel.title, series.name, point.row.id, launch.number)
                    yield place, launch, measured


def draw_memory(panels: Sequence[Panel], *, width: float) -> Figure:
    """Peak memory of every rank in every launch, by cell.

    Args:
        panels: at least one.
        width: of the figure, in inches.
    """
    label = "MiB at most, of each rank and launch"
    return draw_rows(panels, _draw_ranks, width=width, row=_ROW, label=label)


def _draw_boxes(axes: Axes, point: Summary, place: int) -> None:
    launches = [1e3 * one.steps_s for one in point.measures]
    axes.boxplot(
        np.concatenate(launches),
        orientation="horizontal",
        positions=[place],
        widths=0.6,
        whis=WHISKERS,
        patch_artist=True,
        manage_ticks=False,
        boxprops={"facecolor": "0.85", "edgecolor": "0.6"},
        whiskerprops={"color": "0.3"},
        capprops={"color": "0.3"},
        medianprops={"color": "0.3"},
        flierprops={"marker": ".", "ms": 2, "mec": "0.45"},
    )
    medians = [float(np.median(steps)) for steps in launches]
    axes.plot(medians, [place] * len(medians), "|", color="C3", ms=9, mew=1.3)


def _draw_ranks(axes: Axes, point: Summary, place: int) -> None:
    for launch in point.row.launches:
        ranks = launch.record["ranks"]
        spread = np.linspace(-0.25, 0.25, len(ranks)) if len(ranks) > 1 else [0.0]
        peaks = [peak_memory([rank]) for rank in ranks]
        axes.plot(peaks, place + np.asarray(spread), "o", ms=3, mfc="none", mec="C0")
