"""How fast the ranks of a cell exchange bytes: latency and bus bandwidth by size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from rankbench.results.elements.names import shorten
from rankbench.results.elements.section import (
    Content,
    Drawing,
    Section,
    make_frame,
)
from rankbench.results.elements.text import Grid, Text, figures, show_estimate
from rankbench.results.numbers.exchange import Sweep, find_sweeps
from rankbench.results.numbers.result_set import ResultSet
from rankbench.results.numbers.statistics import Estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TITLE = "Exchange between ranks"
_HEIGHT = 3.7

COLUMNS = {
    "cell": str,
    "operation": str,
    "bytes": int,
    "us": Estimate,
    "bus_gb_s": Estimate,
}


def make(found: ResultSet) -> Content | None:
    """A row for each size of each operation of each cell with a sweep."""
    sweeps = [one for row in found.summaries for one in find_sweeps(row)]
    if not sweeps:
        return None
    names, _ = shorten([summary.row.id for summary in found.summaries])
    rows = [
        {
            "cell": sweep.cell,
            "operation": sweep.title,
            "bytes": point.size,
            "us": point.us,
            "bus_gb_s": point.bus_gb_s,
        }
        for sweep in sweeps
        for point in sweep.points
    ]
    drawing = Drawing(
        name="bandwidth",
        caption="Bus bandwidth against the size of a call, means over launches.",
        frame=partial(make_frame, COLUMNS, rows),
        draw=partial(_draw, sweeps, names),
    )
    return Content(rows=rows, grids=[_show(sweeps)], drawings=[drawing])


def _show(sweeps: Sequence[Sweep]) -> Grid:
    columns = {
        "cell": False,
        "operation": False,
        "shortest call (us)": True,
        "of (KiB)": True,
        "highest bus bandwidth (GB/s)": True,
        "at (MiB)": True,
    }
    rows = [
        [
            Text(sweep.cell),
            Text(sweep.title),
            show_estimate(sweep.points[0].us),
            Text(figures(sweep.points[0].size / 2**10)),
            show_estimate(sweep.fastest.bus_gb_s),
            Text(figures(sweep.fastest.size / 2**20)),
        ]
        for sweep in sweeps
    ]
    return Grid(_TITLE, columns, rows)


def _draw(sweeps: Sequence[Sweep], names: Mapping[str, str], width: float) -> Figure:
    """A line for each operation of each cell; between sizes interpolation is valid."""
    import seaborn as sns
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    from rankbench.results.elements import plotting

    figure, (axes,) = plotting.make_figure([_HEIGHT], width=width)
    places = range(len(sweeps))
    colors, markers = plotting.choose_colors(places), plotting.choose_markers(places)
    for place, sweep in enumerate(sweeps):
        axes.plot(
            [point.size for point in sweep.points],
            [point.bus_gb_s.value for point in sweep.points],
            color=colors[place],
            marker=markers[place],
            ms=4.5,
            lw=1.1,
            label=f"{names[sweep.cell]} {sweep.title}",
        )
        for point in sweep.points:
            plotting.draw_interval(
                axes, point.size, point.bus_gb_s, color=colors[place]
            )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(LogLocator(base=4))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: _bytes(size)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: figures(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("size of a call")
    axes.set_ylabel("bus bandwidth (GB/s)")
    sns.despine(ax=axes)
    figure.legend(loc="outside lower center", ncols=1 if len(sweeps) < 4 else 2)
    return figure


def _bytes(size: float) -> str:
    power = min(int(math.log2(size)) // 10, 3)
    return f"{size / 1024**power:g} {('B', 'KiB', 'MiB', 'GiB')[power]}"


SECTION = Section(
    name="collectives",
    title=_TITLE,
    reading=(
        "Measured after the timed window of each launch, by the same processes over "
        "the same connections, with nothing else to do: the operations that the "
        "strategy uses. A call lasts until its slowest rank is done; means over "
        "calls, then over launches. Bus bandwidth: bytes over time, times the share of "
        "each byte that an ideal algorithm sends over a link (nccl-tests: 2(n-1)/n for "
        "all_reduce, (n-1)/n for reduce_scatter and all_gather, 1 for the others). So "
        "it can be compared with the speed of the network, whatever the number of "
        "ranks."
    ),
    order=30,
    make=make,
    columns=COLUMNS,
    plots=("bandwidth",),
)
