"""Whether the hosts of a cell are equally fast, and which one is not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd

from rankbench.results.elements import plotting
from rankbench.results.elements.section import (
    Content,
    Drawing,
    Row,
    Section,
    make_frame,
)
from rankbench.results.elements.text import Note, show_estimate
from rankbench.results.numbers.hosts import AT_LEAST, HostSpeed, compare_hosts
from rankbench.results.numbers.result_set import ResultSet
from rankbench.results.numbers.statistics import Estimate, geometric_mean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ROW = 0.25  # inches
_READING = (
    "Launches on one host each. Ratio: the speed of a host over the median of the "
    f"others; a host is slow if the bracket lies below {AT_LEAST:g}."
)
_COLUMNS = {
    "cell": (str, "cell"),
    "host": (str, "host"),
    "launches": (int, "launches"),
    "throughput": (float, "throughput"),
    "ratio": (Estimate, "ratio"),
    "slow": (str, "slow"),
}


def describe(speeds: Sequence[HostSpeed], at_least: float) -> list[Row]:
    """The rows of the hosts of a cell."""
    return [
        {
            "cell": one.cell,
            "host": one.host,
            "launches": len(one.launches),
            "throughput": geometric_mean(one.rates).value,
            "ratio": one.ratio,
            "slow": "yes" if one.is_slow(at_least) else "",
        }
        for one in speeds
    ]


def make(found: ResultSet) -> Content | None:
    groups = compare_hosts(found.measured)
    if not groups:
        return None

    def frame() -> pd.DataFrame:
        columns = {"cell": str, "host": str, "launch": int, "throughput": float}
        launches = [
            dict(zip(columns, (one.cell, one.host, *launch), strict=True))
            for speeds in groups
            for one in speeds
            for launch in zip(one.launches, one.rates, strict=True)
        ]
        return make_frame(columns, launches)

    drawing = Drawing(
        name="hosts",
        question="Which host is slow?",
        caption=_READING,
        draw=lambda width: _draw(groups, width),
        frame=frame,
    )
    return Content(
        rows=[row for speeds in groups for row in describe(speeds, AT_LEAST)],
        notes=[Note(one.cell, str(one)) for s in groups for one in s if one.is_slow()],
        drawings=[drawing],
    )


def _draw(groups: Sequence[Sequence[HostSpeed]], width: float) -> Figure:
    shown = groups[:6]
    heights = [_ROW * len(speeds) + 0.7 for speeds in shown]
    figure, grid = plotting.make_figure(
        heights, width=width, question="Which host is slow?"
    )
    for (axes,), speeds in zip(grid, shown, strict=True):
        ends = [1.0]
        for place, one in enumerate(speeds):
            style = plotting.Style("C3" if one.is_slow() else "0.35", "o")
            plotting.draw_interval(
                axes, place, one.ratio, color=style.color, horizontal=True
            )
            usual = geometric_mean(one.rates).value / one.ratio.value
            each = [rate / usual for rate in one.rates]
            ends += [*each, one.ratio.high or 0.0]
            plotting.draw_launches(axes, each, [place] * len(each), style)
            axes.plot([one.ratio.value], [place], "o", ms=5.5, color=style.color)
        axes.axvline(1, color="0.6", lw=0.8, zorder=0)
        plotting.write_title(axes, speeds[0].cell.partition(".hosts=")[0])
        plotting.finish_rows(
            axes,
            [one.host for one in speeds],
            [f"x {show_estimate(one.ratio)}" for one in speeds],
            end=1.05 * max(ends),
        )
        axes.set_xlabel("speed over the median of the other hosts")
    return figure


SECTION = Section(
    name="hosts",
    title="Hosts",
    reading=_READING,
    order=15,
    make=make,
    columns=_COLUMNS,
    plots=["hosts"],
)
