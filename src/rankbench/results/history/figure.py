"""The look of the figure of a line. history.js fills it with the chosen cell."""

from __future__ import annotations

from typing import Any

from bokeh.core.types import ID
from bokeh.embed import json_item
from bokeh.models import HoverTool, NumeralTickFormatter, Range1d
from bokeh.plotting import figure

from rankbench.results.render.html.figures import (
    INK,
    TOOLS,
    make_source,
    style,
)

_POINT = "#1f6fb2"
_LEVEL = "#b3541e"

POINT_COLUMNS = (
    "x",
    "y",
    "low",
    "high",
    "time",
    "value",
    "interval",
    "launches",
    "run",
)


def make_figure() -> dict[str, Any]:
    """Throughput over time, for the element ``line-figure``."""
    return dict(json_item(_make(), ID("line-figure")))


def _make() -> figure:
    plot = figure(
        name="line",
        height=420,
        sizing_mode="stretch_width",
        x_axis_type="datetime",
        # history.js sets both ranges: without data, there are none to find.
        x_range=Range1d(start=0, end=1),
        y_range=Range1d(start=0, end=1),
        # history.js names the unit.
        y_axis_label="throughput",
        tools=TOOLS,
    )
    plot.yaxis.formatter = NumeralTickFormatter(format="0.[000]")
    plot.vspan(
        x="x", source=make_source("changes", ("x",)), line_color=_LEVEL, line_width=3
    )
    plot.vspan(
        x="x",
        source=make_source("environment", ("x",)),
        line_color=INK,
        line_dash="dashed",
        line_width=1,
    )
    plot.multi_line(
        "xs",
        "ys",
        source=make_source("levels", ("xs", "ys")),
        line_color=_LEVEL,
        line_width=2.5,
    )
    points = make_source("points", POINT_COLUMNS)
    plot.segment(
        x0="x",
        x1="x",
        y0="low",
        y1="high",
        source=points,
        line_color=_POINT,
        line_width=3,
        line_alpha=0.35,
    )
    marks = plot.scatter(
        "x", "y", source=points, size=6, line_color=_POINT, fill_color=_POINT
    )
    plot.add_tools(
        HoverTool(
            renderers=[marks],
            tooltips=[
                ("begun", "@time"),
                ("median", "@value"),
                ("95 % interval", "@interval"),
                ("launches", "@launches"),
                ("run", "@run"),
            ],
        )
    )
    style(plot)
    plot.xgrid.grid_line_color = None
    return plot
