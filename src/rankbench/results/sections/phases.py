"""Where the time of a step goes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from rankbench.results.elements.panels import make_plot_section
from rankbench.results.elements.text import figures
from rankbench.results.numbers.series import Panel
from rankbench.results.numbers.summary import Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Hatches distinguish phases in grey prints as well.
_HATCHES = {"load": "...", "transfer": "xx", "communication": "///", "update": "\\\\\\"}
_BAR = 0.3  # inches


def _rows(point: Summary) -> Iterator[dict[str, Any]]:
    for phase in point.measures[0].phase_ms:
        yield {"phase": phase, "ms": _mean_ms(point, phase)}


def _draw(panels: Sequence[Panel], width: float) -> Figure:
    """A stacked bar for every cell."""
    from matplotlib.patches import Patch

    from rankbench.results.elements import plotting

    measures = [m for panel in panels for point in panel.points for m in point.measures]
    colors = plotting.color_phases([name for one in measures for name in one.phase_ms])
    label = "ms per step (mean over ranks, steps and launches)"
    draw = partial(_draw_bar, colors=colors)
    figure = plotting.draw_rows(panels, draw, width=width, row=_BAR, label=label)
    handles = [Patch(label=phase, **_style(phase, colors)) for phase in colors]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    return figure


def _draw_bar(
    axes: Axes, point: Summary, place: int, *, colors: dict[str, Any]
) -> None:
    left = 0.0
    for phase in colors:
        width = _mean_ms(point, phase)
        axes.barh(place, width, 0.7, left=left, **_style(phase, colors))
        left += width
    end, right_of_it = (left, place), (4, 0)
    axes.annotate(
        figures(left), end, right_of_it, textcoords="offset points", va="center", size=8
    )


def _style(phase: str, colors: dict[str, Any]) -> dict[str, Any]:
    hatch = _HATCHES.get(phase)
    return {"facecolor": colors[phase], "edgecolor": "white", "hatch": hatch, "lw": 0}


def _mean_ms(point: Summary, phase: str) -> float:
    """0 for a phase that the strategy does not have."""
    values = [launch.phase_ms.get(phase, 0.0) for launch in point.counted]
    return sum(values) / len(values)


SECTION = make_plot_section(
    name="phases",
    title="Phases of a step",
    reading="Mean time of a step by phase, over ranks, steps and launches.",
    order=4,
    columns={"phase": str, "ms": float},
    rows=_rows,
    draw=_draw,
)
