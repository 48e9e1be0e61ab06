"""Peak memory of every rank in every launch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from rankbench.results.elements.panels import make_plot_section
from rankbench.results.numbers.measures import peak_memory
from rankbench.results.numbers.series import Panel
from rankbench.results.numbers.summary import Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROW = 0.34  # inches

# The axis ends at this multiple of the largest median of a cell.
_BEYOND = 1.5


def _rows(point: Summary) -> Iterator[dict[str, Any]]:
    """A row for each rank of each launch."""
    for launch in point.row.launches:
        for rank in launch.record["ranks"]:
            mib = peak_memory([rank])
            yield {"launch": launch.number, "rank": rank["rank"], "mib": mib}


def _draw(panels: Sequence[Panel], width: float) -> Figure:
    from rankbench.results.elements import plotting

    return plotting.draw_rows(
        panels,
        _draw_ranks,
        width=width,
        row=_ROW,
        label="peak MiB of each rank and launch",
        values=lambda point: [row["mib"] for row in _rows(point)],
        limit=lambda peaks: _BEYOND * median(peaks),
    )


def _draw_ranks(axes: Axes, point: Summary, place: int) -> None:
    for launch in point.row.launches:
        peaks = [peak_memory([rank]) for rank in launch.record["ranks"]]
        heights = np.linspace(-0.25, 0.25, len(peaks)) if len(peaks) > 1 else [0.0]
        axes.plot(peaks, place + np.asarray(heights), "o", ms=3, mfc="none", mec="C0")


SECTION = make_plot_section(
    name="memory",
    title="Memory",
    reading=(
        "Peak memory of every rank in every launch; the ranks of a cell stand below "
        "each other. The axis ends at 1.5 times the largest median of a cell; ranks "
        "beyond are counted at its end."
    ),
    order=6,
    columns={"launch": int, "rank": int, "mib": float},
    rows=_rows,
    draw=_draw,
)
