"""The look of the interactive figures. figures.js fills them with cells.

Bokeh describes a figure here and draws it in the browser. Both parts are in its wheel.
"""

from __future__ import annotations

from typing import Any

from bokeh.core.types import ID
from bokeh.embed import json_item
from bokeh.models import (
    ColumnDataSource,
    DataRange1d,
    FactorRange,
    FixedTicker,
    HoverTool,
    NumeralTickFormatter,
    Range1d,
    TapTool,
)
from bokeh.plotting import figure

INK, FAINT, LINE = "#1c2430", "#5d6878", "#e3e7ed"

# Tools of both figures; hover and tap are added to each separately.
TOOLS = "pan,box_zoom,reset,save"

SCALING_COLUMNS = (
    *("x", "y", "low", "high", "color", "fill", "marker"),
    *("cell", "series", "topology", "value", "interval", "launches", "marks"),
)
LAUNCH_COLUMNS = ("x", "y", "color", "fill", "cell", "value", "launch")
PHASE_COLUMNS = (
    *("label", "left", "right", "color", "hatch"),
    *("cell", "phase", "ms", "share"),
)


def make_figures() -> dict[str, Any]:
    """The figures by the id of the element that each is drawn into."""
    return {
        name: json_item(make(), ID(name))
        for name, make in (
            ("scaling-figure", make_scaling),
            ("phases-figure", make_phases),
        )
    }


def make_scaling() -> figure:
    """A number over devices: every launch, means with intervals, lines, the ideal."""
    plot = figure(
        name="scaling",
        height=420,
        sizing_mode="stretch_width",
        x_axis_type="log",
        x_range=Range1d(start=0.7, end=2.8),
        y_range=DataRange1d(start=0),
        x_axis_label="devices",
        tools=TOOLS,
    )
    plot.xaxis.ticker = FixedTicker(ticks=[1, 2])
    plot.xaxis.formatter = NumeralTickFormatter(format="0")
    ideal = make_source("ideal", ("xs", "ys"))
    plot.multi_line(
        "xs", "ys", source=ideal, line_color=FAINT, line_dash="dashed", line_width=1
    )
    lines = make_source("lines", ("xs", "ys", "color"))
    plot.multi_line("xs", "ys", source=lines, line_color="color", line_width=1.3)
    medians = make_source("medians", SCALING_COLUMNS)
    plot.segment(
        x0="x",
        x1="x",
        y0="low",
        y1="high",
        source=medians,
        line_color="color",
        line_width=5,
        line_alpha=0.35,
    )
    launches = plot.scatter(
        "x",
        "y",
        source=make_source("launches", LAUNCH_COLUMNS),
        size=4,
        line_color="color",
        fill_color="fill",
        line_width=0.6,
    )
    points = plot.scatter(
        "x",
        "y",
        source=medians,
        size=9,
        marker="marker",
        line_color="color",
        fill_color="fill",
        line_width=1.6,
        nonselection_alpha=1.0,
    )
    plot.add_tools(
        HoverTool(
            renderers=[points],
            tooltips=[
                ("cell", "@cell"),
                ("median", "@value"),
                ("95 % interval", "@interval"),
                ("launches", "@launches"),
                ("marks", "@marks"),
            ],
        ),
        HoverTool(
            renderers=[launches],
            tooltips=[("cell", "@cell"), ("launch", "@launch"), ("value", "@value")],
        ),
        TapTool(renderers=[points]),
    )
    style(plot)
    plot.xgrid.grid_line_color = None
    return plot


def make_phases() -> figure:
    """Milliseconds of a step by phase, a bar for each cell."""
    plot = figure(
        name="phases",
        height=200,
        sizing_mode="stretch_width",
        x_range=DataRange1d(start=0),
        y_range=FactorRange(factors=[]),
        x_axis_label="ms per step",
        tools=TOOLS,
    )
    bars = plot.hbar(
        y="label",
        left="left",
        right="right",
        height=0.7,
        source=make_source("bars", PHASE_COLUMNS),
        fill_color="color",
        line_color="white",
        line_width=0.5,
        hatch_pattern="hatch",
        hatch_color="white",
        hatch_alpha=0.55,
        hatch_scale=7,
        hatch_weight=1,
        nonselection_alpha=1.0,
    )
    plot.add_tools(
        HoverTool(
            renderers=[bars],
            tooltips=[
                ("cell", "@cell"),
                ("phase", "@phase"),
                ("of a step", "@ms ms"),
                ("share", "@share"),
            ],
        ),
        TapTool(renderers=[bars]),
    )
    style(plot)
    plot.ygrid.grid_line_color = None
    return plot


def make_source(name: str, columns: tuple[str, ...]) -> ColumnDataSource:
    """An empty source that a script finds by its name."""
    return ColumnDataSource(data={column: [] for column in columns}, name=name)


def style(plot: figure) -> None:
    """Give a figure the look of the page."""
    plot.toolbar.logo = None
    plot.toolbar.autohide = True
    plot.outline_line_color = None
    plot.grid.grid_line_color = LINE
    for axis in (*plot.xaxis, *plot.yaxis):
        axis.axis_line_color = LINE
        axis.major_tick_line_color = LINE
        axis.minor_tick_line_color = None
        axis.major_label_text_color = INK
        axis.axis_label_text_color = FAINT
        axis.axis_label_text_font_style = "normal"
