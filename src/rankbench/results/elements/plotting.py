"""What plots share: styles of strategies, marks with intervals, axes and labels."""

from __future__ import annotations

import importlib
import itertools
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rankbench.cell import REFERENCE
from rankbench.results.numbers.series import Panel, Series, is_shared
from rankbench.results.numbers.statistics import Estimate

# Nothing is imported that only drawing needs, which takes a second to import.
if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from rankbench.results.numbers.result_set import Summary

_TITLE_WIDTH, _NAME_WIDTH = 84, 34  # characters
_LABEL = 0.16  # height of a name on the right of a panel, in inches
_FOLDED = 7  # size of a name in two lines, in points
MARKERS = "osD^vPX*<>"

# On a logarithmic axis that spans less, the ticks are those of a linear axis.
_DECADE = 8.0

LINES = ("-", (0, (6, 1.5)), (0, (3, 1)), (0, (1, 1)))

# The reference is grey. Place 7 of seaborn's colorblind palette is grey, too.
_REFERENCE = ("0.35", "o")
_PLACES = (0, 1, 2, 3, 4, 5, 9, 8, 6)

# Ticks such as ``0.5``, ``20`` and ``3,000``.
PLAIN = "{x:,.6g}"

# Distance between series with equal numbers of devices, in doublings.
_APART = 0.045

# Phases in the order of a step, each with its place in seaborn's colorblind palette.
_PHASES = {
    "load": 7,
    "transfer": 8,
    "forward": 9,
    "backward": 0,
    "communication": 3,
    "update": 2,
}
_OTHER_PHASES = (1, 4, 5, 6)


class Style(NamedTuple):
    """How a series is drawn: color and marker are those of its strategy."""

    color: Any
    marker: str
    line: Any = "-"


class Mark(NamedTuple):
    """A cell on two axes; each of its launches is a small mark beside it."""

    x: Estimate
    y: Estimate
    launches: Sequence[float] = ()


Styles = Mapping[str, Style]

# For each series its last mark, its name and its style.
Ends = Sequence[tuple[Mark, str, Style]]


def load_seaborn() -> Any:
    """The module seaborn, without packages that we use nothing of.

    Densities and clusters need them, and they take longer to import than all plots of
    an experiment to draw.
    """
    modules: dict[str, Any] = sys.modules
    hidden = {"scipy.stats", "scipy.cluster"} - modules.keys()
    modules |= dict.fromkeys(hidden)
    try:
        return importlib.import_module("seaborn")
    finally:
        for name in hidden:
            del modules[name]


def choose_styles(panels: Sequence[Panel], known: Sequence[Panel]) -> dict[str, Style]:
    """The style of each series, by name.

    Args:
        panels: with the series.
        known: all panels of the experiment: their strategies share out colors and
            markers, so that a strategy has the same ones on all plots. Several series
            of a strategy differ in their lines, and in how pale their color is.
    """
    every = [s for panel in (*known, *panels) for s in panel.series]
    others = dict.fromkeys(_strategy(s) for s in every if _strategy(s) != REFERENCE)
    sns = load_seaborn()
    palette = sns.color_palette("colorblind")
    colors = [palette[place] for place in _PLACES]
    if len(others) > len(colors):
        colors = sns.color_palette("husl", len(others))
    looks = dict(zip(others, zip(colors, itertools.cycle(MARKERS[1:])), strict=False))
    looks[REFERENCE] = _REFERENCE
    alike: dict[str, list[str]] = {}
    for series in (s for panel in panels for s in panel.series):
        names = alike.setdefault(_strategy(series), [])
        names += [series.name] if series.name not in names else []
    return {
        name: Style(
            pale(looks[strategy][0], place, len(names)),
            looks[strategy][1],
            LINES[place % len(LINES)],
        )
        for strategy, names in alike.items()
        for place, name in enumerate(names)
    }


def _strategy(series: Series) -> str:
    return series.points[0].cell.strategy


def pale(color: Any, place: int, count: int) -> tuple[float, ...]:
    """The color, mixed with more white for later places of a count."""
    from matplotlib.colors import to_rgb

    share = 0.65 * place / count
    return tuple((1 - share) * np.array(to_rgb(color)) + share)


def color_phases(names: Iterable[str]) -> dict[str, Any]:
    """The phases that occur, in the order of a step, and their colors."""
    found = set(names)
    ordered = [p for p in _PHASES if p in found] + sorted(found - _PHASES.keys())
    others = itertools.cycle(_OTHER_PHASES)
    palette = load_seaborn().color_palette("colorblind")
    return {p: palette[_PHASES[p] if p in _PHASES else next(others)] for p in ordered}


def make_figure(
    heights: Sequence[float], *, width: float, columns: int = 1
) -> tuple[Figure, list[list[Axes]]]:
    """A figure with rows of panels below each other.

    Args:
        heights: of the rows, in inches.
        width: of the figure, in inches.
        columns: panels in a row, which share their vertical axis.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, sum(heights) + 0.6), layout="constrained")
    grid = figure.subplots(
        len(heights),
        columns,
        squeeze=False,
        height_ratios=list(heights),
        sharey="row" if columns > 1 else False,
    )
    return figure, [list(row) for row in grid]


def write_title(axes: Axes, title: str) -> None:
    """Write a title in one line or two; a workload may have long arguments."""
    lines = textwrap.fill(title, _TITLE_WIDTH, max_lines=2, placeholder=" ...")
    axes.set_title(lines, parse_math=False, loc="left", size=8.5, color="0.35")


def draw_interval(
    axes: Axes, x: float, number: Estimate, *, color: Any, horizontal: bool = False
) -> None:
    """The interval of an estimate as a thick, pale line; nothing if it has none."""
    if number.interval:
        draw = axes.hlines if horizontal else axes.vlines
        draw(x, *number.interval, color=color, lw=4, alpha=0.3, zorder=2)


def draw_mark(axes: Axes, mark: Mark, point: Summary, style: Style) -> None:
    """A cell with its launches and intervals.

    The marker is hollow if ranks share cores or GPUs.
    """
    draw_interval(axes, mark.x.value, mark.y, color=style.color)
    draw_interval(axes, mark.y.value, mark.x, color=style.color, horizontal=True)
    draw_launches(axes, [mark.x.value] * len(mark.launches), mark.launches, style)
    fill = "white" if is_shared(point) else style.color
    places = [mark.x.value], [mark.y.value]
    axes.plot(*places, style.marker, ms=5.5, mec=style.color, mfc=fill, zorder=4)


def draw_launches(
    axes: Axes, x: Sequence[float], y: Sequence[float], style: Style
) -> None:
    """Small marks of launches; nothing if there are none."""
    if len(x):
        axes.plot(x, y, "o", ms=2.4, mew=0, mfc=style.color, alpha=0.7, zorder=4)


def places(marks: Sequence[Mark]) -> tuple[list[float], list[float]]:
    """Where marks are: the values of both axes."""
    return [mark.x.value for mark in marks], [mark.y.value for mark in marks]


def draw_series(
    axes: Axes,
    panel: Panel,
    styles: Styles,
    find: Callable[[Series, Summary], Mark | None],
    *,
    names_points: bool = False,
) -> Ends:
    """All cells of a panel as marks; those of a series are joined.

    Two points are not joined: they would suggest a trend.

    Args:
        find: the mark of a cell; None if it has none.
        names_points: whether each mark has its topology beside it.

    Returns:
        For each series its last mark, its name and its style, for `label_ends`.
    """
    ends = []
    for series in panel.series:
        style = styles[series.name]
        found = {point.id: find(series, point) for point in series.points}
        for line in series.lines:
            known = [mark for point in line if (mark := found[point.id])]
            if len(known) > 2:
                axes.plot(
                    *places(known), color=style.color, ls=style.line, lw=1.1, zorder=1
                )
        last = None
        for point in series.points:
            if mark := found[point.id]:
                draw_mark(axes, mark, point, style)
                last = mark if last is None or mark.x.value >= last.x.value else last
                if names_points:
                    axes.annotate(
                        point.cell.topology,
                        (mark.x.value, mark.y.value),
                        (5, 4),
                        textcoords="offset points",
                        size=6.5,
                        color="0.35",
                    )
        if last:
            ends.append((last, series.name, style))
    return ends


def label_ends(axes: Axes, ends: Ends, height: float) -> None:
    """Names on the right of the axes, each led to by a thin line.

    The limits of the axes must be final.

    Args:
        ends: what a name belongs to, the name, and its style.
        height: of the axes, in inches.
    """
    from matplotlib.transforms import ScaledTranslation

    at = axes.transScale + axes.transLimits
    heights = [at.transform((m.x.value, m.y.value))[1] for m, _, _ in ends]
    figure = axes.get_figure(root=True)
    assert figure is not None
    inches = figure.dpi_scale_trans
    for_marker, for_text = (
        axes.transAxes + ScaledTranslation(points / 72, 0, inches) for points in (8, 14)
    )
    names = [_fold(name) for _, name, _ in ends]
    gap = _LABEL * (2 if any("\n" in name for name in names) else 1) / height
    for (mark, _, style), name, place in zip(
        ends, names, _spread(heights, gap), strict=True
    ):
        axes.annotate(
            name,
            (mark.x.value, mark.y.value),
            (1, place),
            textcoords=for_text,
            va="center",
            size=_FOLDED if "\n" in name else 8,
            parse_math=False,
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "linestyle": (0, (1, 2)),
                "color": style.color,
                "lw": 0.7,
                "alpha": 0.7,
                # Cutting the line at the text's box would take a tenth of all drawing.
                "patchA": None,
                "shrinkA": 2,
                "shrinkB": 3,
                "relpos": (0, 0.5),
            },
        )
        axes.plot(
            [1],
            [place],
            style.marker,
            color=style.color,
            ms=4,
            transform=for_marker,
            clip_on=False,
        )


def _spread(heights: Sequence[float], gap: float) -> list[float]:
    """Nearly the same heights, 0 to 1, none closer to another than a gap."""
    order = np.argsort(heights, kind="stable")
    places = np.clip(np.array(heights, float), 0, 1)
    low = -np.inf
    for index in order:
        places[index] = low = max(places[index], low + gap)
    high = max(1.0, gap * (len(heights) - 1))
    for index in order[::-1]:
        places[index] = high = min(places[index], high)
        high -= gap
    return [float(place) for place in places]


def _fold(name: str) -> str:
    """Fold a name into two lines: names of similar rows often differ at their end."""
    return textwrap.fill(name, _NAME_WIDTH, max_lines=2, placeholder=" ...")


def place_series(panel: Panel) -> Callable[[Series, Summary], float]:
    """Where a cell of a series stands on the axis of devices.

    Those with equally many devices stand beside each other in a fixed order. All that
    is drawn of a cell, its mean, its interval and its launches, has the same place.
    """
    beside: dict[int, dict[str, None]] = {}
    for series, point in each_row(panel):
        beside.setdefault(point.devices, {})[series.name] = None

    def place(series: Series, point: Summary) -> float:
        names = list(beside[point.devices])
        shift = names.index(series.name) - (len(names) - 1) / 2
        return float(point.devices * 2 ** (min(_APART, 0.6 / len(names)) * shift))

    return place


def scale_devices(axes: Axes, devices: Iterable[int]) -> list[int]:
    """A logarithmic axis with a tick for each number of devices that occurs."""
    counts = sorted(set(devices))
    axes.set_xscale("log", base=2)
    axes.set_xlim(counts[0] / 2**0.4, counts[-1] * 2**0.4)
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.minorticks_off()
    axes.grid(visible=False, axis="x")
    axes.set_xlabel("devices")
    return counts


def scale_by_logarithm(axes: Axes, axis: str = "y") -> None:
    """A logarithmic axis with numbers that people read."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    (axes.set_yscale if axis == "y" else axes.set_xscale)("log")
    scaled = axes.yaxis if axis == "y" else axes.xaxis
    low, high = scaled.get_view_interval()
    linear, steps = MaxNLocator(5, steps=[1, 2, 5, 10]), LogLocator(subs=(1, 2, 5))
    scaled.set_major_locator(linear if high < _DECADE * low else steps)
    scaled.set_major_formatter(PLAIN)
    scaled.set_minor_formatter(NullFormatter())


def each_row(panel: Panel) -> list[tuple[Series, Summary]]:
    """Every cell with its series."""
    return [(series, point) for series in panel.series for point in series.points]


def finish_rows(
    axes: Axes,
    names: Sequence[str],
    values: Sequence[str],
    *,
    end: float,
    beyond: Sequence[Sequence[float]] | None = None,
) -> None:
    """A name on the left of each row, its value on the right; the axis begins at 0.

    Args:
        end: where the axis ends.
        beyond: of each row, values of which those beyond the end are counted there.
    """
    axes.set_yticks(range(len(names)), list(map(_fold, names)), parse_math=False)
    for label in axes.get_yticklabels():
        if "\n" in label.get_text():
            label.set(size=_FOLDED, linespacing=1)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(0, end)
    axes.xaxis.set_major_formatter(PLAIN)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    at: dict[str, Any] = {"textcoords": "offset points", "annotation_clip": False}
    at |= {"xycoords": ("axes fraction", "data"), "va": "center", "parse_math": False}
    for place, text in enumerate(values):
        axes.annotate(text, (1, place), (6, 0), size=8, **at)
    for place, some in enumerate(beyond or ()):
        if far := [value for value in some if value > end]:
            said = f"{len(far)} up to {max(far):.4g} \u25b6"
            axes.annotate(said, (1, place), (-2, 6), size=6.5, ha="right", **at)


def name_point(series: Series, point: Summary) -> str:
    """``ddp gloo 1x2``."""
    note = " (oversubscribed)" if is_shared(point) else ""
    return f"{series.name} {point.cell.topology}{note}"


def add_legend(figure: Figure, handles: Sequence[Artist], note: str = "") -> None:
    """A legend below all panels, and a note above it."""
    if handles or note:
        figure.legend(
            handles=handles,
            loc="outside lower center",
            ncols=min(4, max(1, len(handles))),
            title=note,
            title_fontsize=8,
        )


def make_line(label: str, *, color: Any = "0.5", lw: float = 1, **style: Any) -> Line2D:
    """An entry of a legend: a line."""
    from matplotlib.lines import Line2D

    return Line2D([], [], color=color, lw=lw, label=label, **style)


def explain_marks(panels: Sequence[Panel], kind: str) -> list[Line2D]:
    """Entries of a legend: `launches` or intervals, and hollow markers, if any.

    Args:
        kind: `launches`, `means` with their intervals, or `values` without.
    """
    points = [point for panel in panels for point in panel.points]
    handles = []
    if kind == "launches":
        handles.append(make_line("a launch", color="0.4", ls="", marker="o", ms=2.6))
    elif kind == "means" and any(
        number.interval for point in points for number in point.numbers.values()
    ):
        handles.append(make_line("95 % interval", color="0.4", lw=4, alpha=0.3))
    if any(map(is_shared, points)):
        handles.append(
            make_line("oversubscribed", color="0.4", ls="", marker="o", mfc="white")
        )
    return handles
