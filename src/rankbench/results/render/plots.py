"""Write drawings as files. The same plan and records give the same bytes."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

from rankbench.record import Layout, write_if_changed
from rankbench.results.elements.section import Drawing

# Inches: narrow, so that letters can be read on a telephone.
_WIDTH = 5.6
_DPI = 150

# Fonts and the ids of SVG elements would differ from machine to machine.
_RC: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "svg.hashsalt": "rankbench",
    "figure.dpi": 100,
    "font.size": 9,
    "axes.labelsize": 9,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "0.9",
    # A dollar sign in a name does not start a formula.
    "text.parse_math": False,
}


def draw_plots(layout: Layout, drawings: Iterable[Drawing]) -> None:
    """Write plots/NAME.svg and .png."""
    import matplotlib
    import seaborn as sns
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    matplotlib.use("Agg")
    with matplotlib.rc_context():
        # A user's own matplotlibrc must not change a published plot.
        matplotlib.rcdefaults()
        sns.set_theme("paper", "whitegrid", rc=_RC)
        for drawing in drawings:
            figure = drawing.draw(_WIDTH)
            figure.set_dpi(_DPI)
            # Not by `savefig`, which draws everything once more before it draws. PNG
            # first: at the few pixels of SVG, hinting makes text too narrow for the
            # layout of both.
            png, svg = io.BytesIO(), io.StringIO()
            FigureCanvasAgg(figure).print_png(png, metadata={"Software": None})
            # Computing the layout takes longest, so it is done once.
            figure.set_layout_engine("none")
            FigureCanvasSVG(figure).print_svg(svg, metadata={"Date": None})
            write_if_changed(layout.plot(drawing.name, "png"), png.getvalue())
            write_if_changed(layout.plot(drawing.name, "svg"), svg.getvalue().encode())
            # The memory is freed now, not when the garbage collector runs.
            figure.clear()
