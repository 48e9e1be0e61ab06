"""How fast the ranks of a cell exchange bytes: latency and bus bandwidth by size."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from rankbench.results.elements import plotting
from rankbench.results.elements.plotting import Ends, Styles
from rankbench.results.elements.section import (
    Content,
    PanelPlot,
    Row,
    Section,
    draw_panels,
    fit_labels,
    make_grid,
)
from rankbench.results.numbers.losses import Sweep, find_sweeps
from rankbench.results.numbers.result_set import ResultSet
from rankbench.results.numbers.series import Panel
from rankbench.results.numbers.statistics import Estimate

_TITLE = "Exchange between ranks"


def make(found: ResultSet) -> Content | None:
    """Measured after the timed window of each launch, by the same processes over the
    same connections, with nothing else to do: the operations that the strategy uses. A
    call lasts until its slowest rank is done; means over calls, then over launches. Bus
    bandwidth: bytes over time, times the share of each byte that an ideal algorithm
    sends over a link (nccl-tests: 2(n-1)/n for all_reduce, (n-1)/n for reduce_scatter
    and all_gather, 1 for the others). So it can be compared with the speed of the
    network, whatever the number of ranks.
    """
    sweeps = [one for row in found.rows for one in find_sweeps(row)]
    if not sweeps:
        return None
    rows = [row for sweep in sweeps for row in _rows(sweep)]
    drawings = draw_panels(found, [_plot(sweeps)])
    grid = make_grid(_TITLE, [_show(sweep) for sweep in sweeps])
    return Content(rows=rows, grids=[grid], drawings=list(drawings))


def _rows(sweep: Sweep) -> Iterator[dict[str, Any]]:
    for point in sweep.points:
        yield {
            "cell": sweep.cell,
            "operation": sweep.title,
            "bytes": point.size,
            "us": point.us,
            "bus_gb_s": point.bus_gb_s,
        }


def _show(sweep: Sweep) -> Row:
    return {
        "cell": sweep.cell,
        "operation": sweep.title,
        "shortest call (us)": sweep.points[0].us,
        "of (KiB)": sweep.points[0].size / 2**10,
        "highest bus bandwidth (GB/s)": sweep.fastest.bus_gb_s,
        "at (MiB)": sweep.fastest.size / 2**20,
    }


def _plot(sweeps: Sequence[Sweep]) -> PanelPlot:
    by_cell: dict[str, list[Sweep]] = {}
    for sweep in sweeps:
        by_cell.setdefault(sweep.cell, []).append(sweep)
    links = _find_links(sweeps)

    def draw(grid: Sequence[plotting.Axes], panel: Panel, styles: Styles) -> Ends:
        """A line for each sweep; between sizes interpolation is valid."""
        from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

        (axes,) = grid
        ends, values = [], [*links]
        for link in links:
            axes.axhline(link, color="0.5", ls="--", lw=1, zorder=1)
        for series, cell in plotting.each_row(panel):
            for place, sweep in enumerate(by_cell.get(cell.id, ())):
                line = plotting.LINES[place % len(plotting.LINES)]
                style = styles[series.name]._replace(line=line)
                marks = [
                    plotting.Mark(Estimate(float(point.size)), point.bus_gb_s)
                    for point in sweep.points
                ]
                x, y = plotting.places(marks)
                axes.plot(x, y, color=style.color, ls=line, lw=1.1)
                for mark in marks:
                    plotting.draw_mark(axes, mark, cell, style)
                name = f"{plotting.name_point(series, cell)} {sweep.title}"
                ends.append((marks[-1], name, style))
                values += y
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(LogLocator(base=16))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: _bytes(size)))
        axes.xaxis.set_minor_formatter(NullFormatter())
        plotting.scale_by_logarithm(axes)
        # An interval that spans a factor of ten must not set the axis.
        axes.set_ylim(min(values) / 2, max(values) * 2)
        axes.set_xlabel("size of a call")
        axes.set_ylabel("bus bandwidth (GB/s)")
        return ends

    return PanelPlot(
        name="bandwidth",
        question="How fast do ranks exchange bytes?",
        caption="Bus bandwidth against the size of a call, means over launches.",
        says=lambda panel: any(point.id in by_cell for point in panel.points),
        height=lambda panel: fit_labels(
            sum(len(by_cell.get(point.id, ())) for point in panel.points)
        ),
        draw=draw,
        lines={"speed of the network card": "--"} if links else {},
    )


def _find_links(sweeps: Sequence[Sweep]) -> list[float]:
    """GB/s of the fastest network card of a host; none if ranks are on one host."""
    records = [sweep.summary.records[0] for sweep in sweeps]
    cards = [
        [card["gbit_s"] / 8 for card in host["nics"] if card.get("gbit_s")]
        for record in records
        if len(record["hosts"]) > 1
        for host in record["hosts"]
    ]
    return sorted({max(speeds) for speeds in cards if speeds})


def _bytes(size: float) -> str:
    power = min(int(math.log2(size)) // 10, 3)
    return f"{size / 1024**power:g} {('B', 'KiB', 'MiB', 'GiB')[power]}"


SECTION = Section(
    title=_TITLE,
    order=30,
    make=make,
    columns={
        **dict.fromkeys(("cell", "operation"), str),
        "bytes": int,
        **dict.fromkeys(("us", "bus_gb_s"), Estimate),
    },
)
