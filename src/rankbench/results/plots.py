"""The plots as files: the same bytes from the same plan and records."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from typing import Any

import matplotlib
import seaborn as sns
from matplotlib.figure import Figure

from rankbench.record import Layout, write_if_changed
from rankbench.results.curves import draw_curves
from rankbench.results.load import load
from rankbench.results.phases import draw_phases
from rankbench.results.profiles import load_profiles
from rankbench.results.scaling import draw_scaling
from rankbench.results.series import make_panels
from rankbench.results.summary import Summary, summarise
from rankbench.results.timeline import draw_timeline

_WIDTH = 8.0
_DPI = 150

# What would differ from machine to machine: fonts, and the ids of SVG elements.
_RC: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "svg.hashsalt": "rankbench",
    "figure.dpi": 100,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "grid.color": "0.9",
}
_METADATA: dict[str, dict[str, Any]] = {
    "svg": {"Date": None},
    "png": {"Software": None},
}


def build(layout: Layout) -> None:
    """Write plots/*.svg and .png: functions of plan and records alone.

    scaling, phases, curves; and profile-CELL for each cell that has a profile: those of
    cells that have none any more are removed.

    Raises:
        ValueError: the plan, a record or its steps are damaged; the message names it.
    """
    matplotlib.use("Agg")
    results = load(layout)
    summaries = summarise(results)
    profiles = load_profiles(layout, results.rows)
    panels = make_panels(summaries)
    with matplotlib.rc_context():
        # A user's own matplotlibrc must not change a published plot.
        matplotlib.rcdefaults()
        sns.set_theme("paper", "whitegrid", rc=_RC)
        if panels:
            plots = {
                "scaling": draw_scaling(panels, width=_WIDTH),
                "phases": draw_phases(panels, width=_WIDTH),
                "curves": draw_curves(panels, width=_WIDTH),
            }
        else:
            figure = draw_nothing(results.experiment, summaries)
            plots = dict.fromkeys(("scaling", "phases", "curves"), figure)
        plots |= {one.plot: draw_timeline(one, width=_WIDTH) for one in profiles}
        for name, figure in plots.items():
            for suffix in ("svg", "png"):
                write_if_changed(layout.plot(name, suffix), _render(figure, suffix))
    for suffix in ("svg", "png"):
        wanted = {layout.plot(one.plot, suffix) for one in profiles}
        pattern = layout.plot("profile-*", suffix)
        for path in set(pattern.parent.glob(pattern.name)) - wanted:
            path.unlink()


def _render(figure: Figure, suffix: str) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format=suffix, metadata=_METADATA[suffix], dpi=_DPI)
    return file.getvalue()


def draw_nothing(experiment: str, summaries: Sequence[Summary]) -> Figure:
    """A plot that says in words why there is nothing to plot."""
    counts = Counter(summary.row.status for summary in summaries)
    listed = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    text = f"No cell of {experiment} is ok, so there is nothing to plot."
    figure = Figure(figsize=(_WIDTH, 1.2))
    figure.text(0.5, 0.6, text, ha="center", va="center", size=11, parse_math=False)
    figure.text(0.5, 0.3, listed or "the plan has no cells", ha="center", va="center")
    return figure
