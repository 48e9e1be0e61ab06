"""The plot of bus bandwidth against the size of a call."""

from __future__ import annotations

from collections.abc import Sequence

import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from rankbench.results.elements.text import figures
from rankbench.results.sections.collectives import Sweep

_HEIGHT = 4.2


def draw_bandwidth(sweeps: Sequence[Sweep], *, width: float) -> Figure:
    """A line for each operation of each cell; between sizes interpolation is valid.

    Args:
        sweeps: at least one.
        width: of the figure, in inches.
    """
    figure = Figure(figsize=(width, _HEIGHT), layout="constrained")
    axes = figure.subplots()
    colors = sns.color_palette(
        "colorblind" if len(sweeps) <= 10 else "husl", len(sweeps)
    )
    for place, (sweep, color) in enumerate(zip(sweeps, colors, strict=True)):
        sizes = [point.size for point in sweep.points]
        values = [point.bus_gb_s for point in sweep.points]
        marker = "osD^vPX*"[place % 8]
        axes.plot(
            sizes,
            [value.value for value in values],
            color=color,
            marker=marker,
            ms=4.5,
            lw=1.1,
            label=f"{sweep.cell} {sweep.operation}",
        )
        for size, value in zip(sizes, values, strict=True):
            if value.low is not None and value.high is not None:
                axes.vlines(size, value.low, value.high, color=color, lw=3, alpha=0.3)
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
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:g} {unit}"
        size /= 1024
    raise AssertionError
