"""The plot of the loss while training."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, NullFormatter
from numpy.typing import NDArray

from rankbench.results.elements.panels import add_legend, color_series, make_figure
from rankbench.results.numbers.series import Panel
from rankbench.results.numbers.summary import Summary

COLUMNS = ("panel", "series", "cell", "samples", "loss", "loss_lo", "loss_hi")

_HEIGHT = 3.2
_STYLES: Sequence[Any] = (
    "-",
    "--",
    ":",
    "-.",
    (0, (6, 1, 1, 1, 1, 1)),
    (0, (1, 4)),
    (0, (8, 3)),
)

# Of lines that lie on each other, each shows around the next.
_WIDEST, _NARROWEST = 3.4, 1.0

# Points of a line; of more steps it shows means.
POINTS = 200

# Losses that span more than this are easier to tell apart on a logarithmic axis.
_LINEAR_UP_TO = 30

_LABELS = {
    "samples": "samples seen (warm-up included)",
    "seconds": "seconds of training (steps at their mean time, warm-up included)",
}

Values = NDArray[np.float64]


def draw_curves(
    panels: Sequence[Panel], *, width: float, over: str = "samples"
) -> Figure:
    """Loss over samples or time: the median of the launches, their range as a band.

    Args:
        panels: at least one.
        width: of the figure, in inches.
        over: ``samples`` that were seen, or ``seconds`` of training.

    Raises:
        ValueError: the steps of a launch are damaged; the message names the file.
    """
    figure, grid = make_figure([_HEIGHT] * len(panels), width=width)
    colors = color_series(panels)
    points = [point for panel in panels for point in panel.points]
    by_devices = sorted(points, key=lambda point: point.row.devices)
    topologies = list(dict.fromkeys(p.row.cell.topology for p in by_devices))
    styles = {t: _STYLES[i % len(_STYLES)] for i, t in enumerate(topologies)}
    for axes, panel in zip(grid, panels, strict=True):
        _draw_panel(axes, panel, colors, styles, over)
    grid[-1].set_xlabel(_LABELS[over])
    handles = [Line2D([], [], color=colors[n], lw=2, label=n) for n in colors]
    line = partial(Line2D, [], [], color="0.4", lw=1.4)
    if len(topologies) > 1:
        handles += [line(linestyle=styles[t], label=t) for t in topologies]
    if any(len(point.row.launches) > 1 for point in points):
        band = Line2D([], [], color="0.4", lw=6, alpha=0.2, label="range of launches")
        handles.append(band)
    add_legend(figure, handles, columns=5)
    return figure


def make_frame(panels: Sequence[Panel], over: str = "samples") -> pd.DataFrame:
    """The data of the plot: a row for each point of each cell.

    Raises:
        ValueError: the steps of a launch are damaged; the message names the file.
    """
    frames = [
        _frame(panel.title, series.name, point, over)
        for panel in panels
        for series in panel.series
        for point in series.points
    ]
    columns = [over if name == "samples" else name for name in COLUMNS]
    return pd.concat(frames) if frames else pd.DataFrame(columns=columns)


def _frame(panel: str, series: str, point: Summary, over: str) -> pd.DataFrame:
    seen, losses = find_curve(point, over)
    center, low, high = (
        np.median(losses, axis=0),
        losses.min(axis=0),
        losses.max(axis=0),
    )
    columns = (panel, series, point.row.id, seen, center, low, high)
    frame = pd.DataFrame(dict(zip(COLUMNS, columns, strict=True)))
    return frame.rename(columns={"samples": over})


def find_curve(point: Summary, over: str = "samples") -> tuple[Values, Values]:
    """Of a cell that is ok, what its launches have seen and lost.

    Returns:
        samples of all replicas, or seconds, at each point, [points]; loss,
        [launches, points], NaN where it is no number. A point is a step, or the mean of
        a few.
    """
    record = point.row.launches[0].record
    steps = np.stack([one.losses for one in point.measures])
    steps[~np.isfinite(steps)] = np.nan
    each = record["samples"] / record["steps"]
    if over == "seconds":
        # Warm-up steps last longer at first, which is not what a curve is for.
        each = float(np.median([one.total_s for one in point.measures]))
        each /= record["steps"]
    seen = each * np.arange(1, steps.shape[1] + 1)
    parts = np.array_split(np.arange(len(seen)), min(len(seen), POINTS))
    means = [steps[:, part].mean(axis=1) for part in parts]
    return np.array([seen[part].mean() for part in parts]), np.stack(means, axis=1)


def _draw_panel(
    axes: Axes,
    panel: Panel,
    colors: dict[str, Any],
    styles: dict[str, Any],
    over: str,
) -> None:
    cells = [(series.name, point) for series in panel.series for point in series.points]
    widths = np.linspace(_WIDEST, _NARROWEST, len(cells)) if len(cells) > 1 else [1.4]
    drawn = []
    for (name, point), width in zip(cells, widths, strict=True):
        seen, losses = find_curve(point, over)
        center = np.median(losses, axis=0)
        style = styles[point.row.cell.topology]
        axes.plot(seen, center, color=colors[name], lw=width, ls=style)
        if len(losses) > 1:
            ends = losses.min(axis=0), losses.max(axis=0)
            axes.fill_between(seen, *ends, color=colors[name], alpha=0.2, lw=0)
        drawn.append(losses)
    _scale(axes, np.concatenate([losses.ravel() for losses in drawn]))
    axes.set_title(panel.title, parse_math=False)
    axes.set_ylabel("loss")
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(visible=False, axis="x")
    sns.despine(ax=axes)


def _scale(axes: Axes, losses: Values) -> None:
    known = losses[np.isfinite(losses)]
    if len(known) and 0 < known.min() < known.max() / _LINEAR_UP_TO:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    elif len(known) and known.min() >= 0:
        axes.set_ylim(bottom=0)
