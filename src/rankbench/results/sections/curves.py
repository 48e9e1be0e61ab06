"""The loss while training, over samples and over time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rankbench.results.elements.panels import draw_panels, each_point
from rankbench.results.elements.section import Content, Section
from rankbench.results.numbers.result_set import ResultSet
from rankbench.results.numbers.series import Panel
from rankbench.results.numbers.summary import Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

_COLUMNS = ("panel", "series", "cell", "samples", "loss", "loss_lo", "loss_hi")

_HEIGHT = 3.2

# Lines coincide if no point differs by more than this share.
_ALIKE = 0.02

# Length of the dashes of coinciding lines, in points: each line fills the gaps of the
# others.
_DASH = 7.0

# Maximum number of points of a line in the data; with more steps, points are means.
POINTS = 200

# A drawn point is the mean of this many points around it.
_SMOOTHED = 11

# Losses that span more than this are easier to tell apart on a logarithmic axis.
_LINEAR_UP_TO = 30

_LABELS = {
    "samples": "samples seen (warm-up included)",
    "seconds": "seconds of training (steps at their mean time, warm-up included)",
}
_TIME_CAPTION = "The same over time: which cell gets there first."

Values = NDArray[np.float64]


def make(found: ResultSet) -> Content:
    """The plots over samples, and over time."""
    drawings = [
        draw_panels(
            found, name, caption, partial(_frame, over=over), partial(_draw, over=over)
        )
        for name, over, caption in (
            ("curves", "samples", SECTION.reading),
            ("time", "seconds", _TIME_CAPTION),
        )
    ]
    return Content(drawings=drawings)


def _frame(panels: Sequence[Panel], *, over: str) -> pd.DataFrame:
    """A row for each point of each cell.

    Raises:
        ValueError: the steps of a launch are damaged; the message names the file.
    """
    frames = []
    for panel, series, point in each_point(panels):
        seen, losses = find_curve(point, over)
        center, low, high = np.median(losses, axis=0), losses.min(0), losses.max(0)
        columns = (panel.title, series.name, point.row.id, seen, center, low, high)
        frames.append(pd.DataFrame(dict(zip(_COLUMNS, columns, strict=True))))
    frame = pd.concat(frames) if frames else pd.DataFrame(columns=list(_COLUMNS))
    return frame.rename(columns={"samples": over})


def find_curve(point: Summary, over: str = "samples") -> tuple[Values, Values]:
    """Progress and loss of the launches of a cell that is ok.

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
        # The first warm-up steps take longer, which a loss curve should not show.
        each = float(np.median([one.total_s for one in point.measures]))
        each /= record["steps"]
    seen = each * np.arange(1, steps.shape[1] + 1)
    parts = np.array_split(np.arange(len(seen)), min(len(seen), POINTS))
    means = [steps[:, part].mean(axis=1) for part in parts]
    return np.array([seen[part].mean() for part in parts]), np.stack(means, axis=1)


def _draw(panels: Sequence[Panel], width: float, *, over: str) -> Figure:
    """The median of the launches as a line, their range as a band."""
    from matplotlib.lines import Line2D

    from rankbench.results.elements import plotting

    figure, grid = plotting.make_figure([_HEIGHT] * len(panels), width=width)
    names = {
        point.row.id: plotting.name_point(series, point)
        for _, series, point in each_point(panels)
    }
    colors = plotting.choose_colors(list(dict.fromkeys(names.values())))
    for axes, panel in zip(grid, panels, strict=True):
        cells = {point.row.id: colors[names[point.row.id]] for point in panel.points}
        _draw_panel(axes, panel, cells, over)
    grid[-1].set_xlabel(_LABELS[over])
    handles = [
        Line2D([], [], color=color, lw=2, label=n) for n, color in colors.items()
    ]
    if any(len(p.row.launches) > 1 for _, _, p in each_point(panels)):
        band = Line2D([], [], color="0.4", lw=6, alpha=0.2, label="range of launches")
        handles.append(band)
    plotting.add_legend(figure, handles, columns=5)
    return figure


def _draw_panel(axes: Axes, panel: Panel, colors: dict[str, Any], over: str) -> None:
    import seaborn as sns
    from matplotlib.ticker import EngFormatter

    from rankbench.results.elements import plotting

    drawn: list[Values] = []
    lines: list[Line2D] = []
    for point in panel.points:
        seen, losses = find_curve(point, over)
        losses = _smooth(losses)
        color = colors[point.row.id]
        lines += axes.plot(seen, np.median(losses, axis=0), color=color, lw=1.6)
        if len(losses) > 1:
            ends = losses.min(axis=0), losses.max(axis=0)
            axes.fill_between(seen, *ends, color=color, alpha=0.2, lw=0)
        drawn.append(losses)
    _dash_coinciding(lines)
    _scale(axes, np.concatenate([losses.ravel() for losses in drawn]))
    plotting.write_title(axes, panel.title)
    axes.set_ylabel("loss")
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(visible=False, axis="x")
    sns.despine(ax=axes)


def _dash_coinciding(lines: Sequence[Line2D]) -> None:
    groups: list[list[Line2D]] = []
    for line in lines:
        data = line.get_xydata()
        for group in groups:
            other = group[0].get_xydata()
            if np.shape(data) == np.shape(other) and np.allclose(
                data, other, rtol=_ALIKE, equal_nan=True
            ):
                group.append(line)
                break
        else:
            groups.append([line])
    for group in groups:
        gap = _DASH * (len(group) - 1)
        for place, line in enumerate(group if gap else []):
            line.set_linestyle((place * _DASH, (_DASH, gap)))
            line.set_dash_capstyle("butt")


def _smooth(losses: Values) -> Values:
    """Running means over the points, [launches, points]; NaN stays NaN."""
    if losses.shape[1] <= 2 * _SMOOTHED:
        return losses
    # At both ends there are fewer points to average.
    weights = np.ones(_SMOOTHED)
    count = np.convolve(np.ones(losses.shape[1]), weights, mode="same")
    rows = [np.convolve(launch, weights, mode="same") / count for launch in losses]
    return np.stack(rows)


def _scale(axes: Axes, losses: Values) -> None:
    from matplotlib.ticker import NullFormatter

    known = losses[np.isfinite(losses)]
    if len(known) and 0 < known.min() < known.max() / _LINEAR_UP_TO:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    elif len(known) and known.min() >= 0:
        axes.set_ylim(bottom=0)


SECTION = Section(
    name="curves",
    title="Loss while training",
    reading=(
        "Mean loss over the ranks that know it: median of the launches, and their "
        "range as a band; running means. Curves that coincide "
        "share one line in the colors of all. A gap is a loss that is not a number."
    ),
    order=7,
    make=make,
    plots=(
        "curves",
        "time",
    ),
)
