"""Peak memory, and how much there is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from rankbench.results.elements import plotting
from rankbench.results.elements.plotting import Styles
from rankbench.results.elements.section import PanelPlot, make_plot_section
from rankbench.results.elements.text import figures
from rankbench.results.numbers.launches import memory_for_rank, peak_memory
from rankbench.results.numbers.result_set import Summary
from rankbench.results.numbers.series import Panel

_ROW = 0.25  # inches
_GIB = 1024.0  # MiB
_RED = "C3"

# The axis ends at this multiple of the largest mean of a cell.
_BEYOND = 1.2

# A smaller share of the memory is not worth a look, if all cells take the same.
_MUCH, _ALIKE = 0.25, 1.1


def find_limit(point: Summary) -> float | None:
    """MiB that a rank may use at most; None if that is not recorded."""
    record = point.records[0]
    ranks = math.ceil(len(record["ranks"]) / len(record["hosts"]))
    return memory_for_rank(record, point.cell.device, ranks)


def _rows(point: Summary) -> Iterator[dict[str, Any]]:
    """A row for each rank of each launch."""
    limit = find_limit(point)
    for number, record in zip(point.launches["launch"], point.records, strict=True):
        for rank in record["ranks"]:
            mib = peak_memory([rank])
            own = {"launch": number, "rank": rank["rank"]}
            yield {**own, "mib": mib, "limit_mib": limit}


def _says(panel: Panel) -> bool:
    peaks = [point.numbers["memory_mib"].value for point in panel.points]
    limits = [find_limit(point) for point in panel.points]
    near = any(
        peak > _MUCH * limit for peak, limit in zip(peaks, limits, strict=True) if limit
    )
    return near or max(peaks) > _ALIKE * min(peaks)


def _draw(grid: Sequence[plotting.Axes], panel: Panel, styles: Styles) -> None:
    """Peak memory of steps, of the rank that takes most, in GiB, and how much there is
    for a rank (red). Dots: every rank of every launch; those beyond the axis are
    counted at its end.
    """
    (axes,) = grid
    rows = plotting.each_row(panel)
    largest = max(point.numbers["memory_mib"].value for _, point in rows)
    end, names, texts, beyond = _BEYOND * largest / _GIB, [], [], []
    for place, (series, point) in enumerate(rows):
        style, gib = styles[series.name], point.numbers["memory_mib"].value / _GIB
        ranks = [row["mib"] / _GIB for row in _rows(point)]
        axes.barh(place, gib, 0.5, color=style.color, alpha=0.35, lw=0)
        plotting.draw_launches(axes, ranks, [place] * len(ranks), style)
        text = figures(gib, 3)
        limit = find_limit(point)
        if limit:
            axes.vlines(limit / _GIB, place - 0.4, place + 0.4, color=_RED, lw=1.5)
            text += f" of {figures(round(limit / _GIB, 1))}"
        names.append(plotting.name_point(series, point))
        texts.append(text)
        beyond.append(ranks)
    near = min((limit / _GIB for _, p in rows if (limit := find_limit(p))), default=0)
    if 0 < near < 2 * end:
        end = max(end, 1.02 * near)
    plotting.finish_rows(axes, names, texts, end=end, beyond=beyond)
    axes.set_xlabel("GiB of the rank that takes most")


def _explain(panels: Sequence[Panel]) -> Sequence[plotting.Artist]:
    return [
        plotting.make_line("a rank of a launch", color="0.4", ls="", marker="o", ms=3),
        plotting.make_line("all that there is for a rank", color=_RED, lw=1.5),
    ]


_PLOT = PanelPlot(
    name="memory",
    question="Does it fit?",
    says=_says,
    height=lambda panel: _ROW * len(panel.points) + 0.7,
    draw=_draw,
    legend=_explain,
    explains="",
)

SECTION = make_plot_section(
    "Memory",
    6,
    [_PLOT],
    columns={"launch": int, "rank": int, "mib": float, "limit_mib": float},
    rows=_rows,
)
