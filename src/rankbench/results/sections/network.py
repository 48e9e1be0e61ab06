"""How fast the network is between each two hosts, measured before the first cell."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from rankbench.results.elements import plotting
from rankbench.results.elements.section import Content, Drawing, Section
from rankbench.results.numbers.result_set import ResultSet

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_QUESTION = "Which link between hosts is slow?"


def make(found: ResultSet) -> Content | None:
    content = Content(
        rows=[
            {"host": one, "other": other, "us": link["us"], "gb_s": link["gb_s"]}
            for (one, other), link in found.links.items()
        ]
    )
    frame = SECTION.frame(content)
    drawing = Drawing(
        name="network",
        question=_QUESTION,
        caption=SECTION.reading,
        draw=partial(_draw, frame),
    )
    few = len(found.links) < 2
    return replace(content, drawings=() if few else [drawing]) if content.rows else None


def _draw(frame: pd.DataFrame, width: float) -> Figure:
    speeds = frame.pivot_table(index="host", columns="other", values="gb_s", sort=False)
    height = 0.3 * len(speeds) + 0.9
    figure, ((axes,),) = plotting.make_figure([height], width=width, question=_QUESTION)
    bar = {"label": "bandwidth (GB/s)"}
    style = {"annot": True, "fmt": ".3g", "cmap": "viridis", "vmin": 0}
    plotting.load_seaborn().heatmap(speeds, cbar_kws=bar, ax=axes, **style)
    return figure


SECTION = Section(
    name="network",
    title="Network",
    reading=(
        "Between two hosts, over one TCP connection from the first to the second, with "
        "nothing else to do: latency of 8 bytes and bandwidth of up to 64 MiB."
    ),
    order=31,
    make=make,
    columns={
        "host": (str, "host"),
        "other": (str, "other"),
        "us": (float, "latency (us)"),
        "gb_s": (float, "bandwidth (GB/s)"),
    },
)
