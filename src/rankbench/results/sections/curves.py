"""The loss while training, over samples and over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rankbench.results.elements import plotting
from rankbench.results.elements.plotting import Ends, Style, Styles
from rankbench.results.elements.section import NAMED, PanelPlot, make_plot_section
from rankbench.results.numbers.launches import SMOOTHED, Values, find_curve
from rankbench.results.numbers.result_set import Summary
from rankbench.results.numbers.series import Panel
from rankbench.results.numbers.statistics import Estimate

# Lines coincide if no point differs by more than this share.
_ALIKE = 0.02

# Length of the dashes of coinciding lines, in points: each line fills the gaps of the
# others.
_DASH = 7.0

# Losses that span more than this are easier to tell apart on a logarithmic axis.
_LINEAR_UP_TO = 30

# A narrower range of launches could not be seen.
_VISIBLE = 0.02

_COLUMNS = ("samples", "seconds", "loss", "loss_lo", "loss_hi")
_OVER = {"samples": "samples seen, warm-up included", "seconds": "seconds of training"}


def _rows(point: Summary) -> Iterator[dict[str, Any]]:
    """A row for each point of a curve: the median of the launches and their range.

    Raises:
        ValueError: the steps of a launch are damaged; the message names the file.
    """
    seen, losses = find_curve(point)
    seconds = seen * point.counted["total_s"].mean() / point.records[0]["samples"]
    ends = np.median(losses, axis=0), losses.min(axis=0), losses.max(axis=0)
    for values in np.stack([seen, seconds, *ends], axis=1).tolist():
        yield dict(zip(_COLUMNS, values, strict=True))


def _draw(grid: Sequence[plotting.Axes], panel: Panel, styles: Styles) -> Ends:
    """The median of the launches as a line, their range as a band."""
    from matplotlib.ticker import MaxNLocator

    looks = _choose_looks(panel, styles)
    ends = []
    for axes, (over, label) in zip(grid, _OVER.items(), strict=True):
        drawn: list[Values] = []
        lines: list[plotting.Line2D] = []
        for series, point in plotting.each_row(panel):
            seen, losses = find_curve(point, over)
            middle, style = np.median(losses, axis=0), looks[point.id]
            lines += axes.plot(seen, middle, color=style.color, lw=1.4)
            if _is_wide(losses):
                band = losses.min(axis=0), losses.max(axis=0)
                axes.fill_between(seen, *band, color=style.color, alpha=0.2, lw=0)
            drawn.append(losses)
            known = np.flatnonzero(np.isfinite(middle))
            is_named = len(panel.points) <= NAMED or point is series.points[-1]
            if axes is grid[-1] and len(known) and is_named:
                at = Estimate(seen[known[-1]]), Estimate(middle[known[-1]])
                name = plotting.name_point(series, point)
                ends.append((plotting.Mark(*at), name, style))
        _dash_coinciding(lines)
        _scale(axes, np.concatenate([losses.ravel() for losses in drawn]))
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.xaxis.set_major_formatter(plotting.PLAIN)
        axes.grid(visible=False, axis="x")
        axes.set_xlabel(label)
    grid[0].set_ylabel("loss")
    return ends


def _choose_looks(panel: Panel, styles: Styles) -> dict[str, Style]:
    """The style of each cell: the fewer devices of a strategy, the paler."""
    alike: dict[str, list[Summary]] = {}
    for point in panel.points:
        alike.setdefault(point.cell.strategy, []).append(point)
    names = {p.id: series.name for series, p in plotting.each_row(panel)}
    looks = {}
    for points in alike.values():
        points.sort(key=lambda point: -point.devices)
        for place, point in enumerate(points):
            style = styles[names[point.id]]
            color = plotting.pale(style.color, place, len(points))
            looks[point.id] = style._replace(color=color)
    return looks


def _is_wide(losses: Values) -> bool:
    """Whether launches differ by more than a line is wide."""
    known = losses[:, np.isfinite(losses).all(axis=0)]
    if not known.size:
        return False
    return bool((np.ptp(known, axis=0) > _VISIBLE * np.ptp(known)).any())


def _dash_coinciding(lines: Sequence[plotting.Line2D]) -> None:
    groups: list[list[plotting.Line2D]] = []
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


def _scale(axes: plotting.Axes, losses: Values) -> None:
    from matplotlib.ticker import NullFormatter

    known = losses[np.isfinite(losses)]
    if len(known) and 0 < known.min() < known.max() / _LINEAR_UP_TO:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    elif len(known) and known.min() >= 0:
        axes.set_ylim(bottom=0)


_PLOT = PanelPlot(
    name="curves",
    question="Which learns fastest, by samples and by time?",
    caption=(
        "Mean loss over the ranks that know it: median of the launches, and their "
        f"range as a band where it can be seen; running means of {SMOOTHED} points. "
        "Seconds: steps at their "
        "mean time. Curves that coincide share one line in the colors of all. A gap is "
        "a loss that is not a number."
    ),
    says=lambda panel: any(
        np.isfinite(losses).any()
        for point in panel.points
        for losses in point.launches["losses"]
    ),
    draw=_draw,
    explains="",
    beside=len(_OVER),
)

SECTION = make_plot_section(
    "Loss while training",
    7,
    [_PLOT],
    columns=dict.fromkeys(_COLUMNS, float),
    rows=_rows,
)
