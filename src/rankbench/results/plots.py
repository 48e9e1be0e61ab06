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
from rankbench.results.bandwidth import draw_bandwidth
from rankbench.results.collectives import find_sweeps
from rankbench.results.curves import draw_curves
from rankbench.results.efficiency import draw_efficiency
from rankbench.results.intensity import find_intensities
from rankbench.results.load import load
from rankbench.results.options import (
    draw_microbatches,
    draw_models,
    find_microbatches,
    find_models,
)
from rankbench.results.phases import draw_phases
from rankbench.results.profiles import load_profiles
from rankbench.results.scaling import draw_scaling
from rankbench.results.series import make_panels
from rankbench.results.spread import draw_memory, draw_steps
from rankbench.results.summary import Summary, summarise
from rankbench.results.timeline import draw_timeline

ALWAYS = ("scaling", "efficiency", "phases", "steps", "memory", "curves", "time")
SOMETIMES = ("bandwidth", "microbatches", "models")

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

    Those of `ALWAYS`; those of `SOMETIMES` for which there is something to show; and
    profile-CELL for each cell that has a profile. What is there no more is removed.

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
                "time": draw_curves(panels, width=_WIDTH, over="seconds"),
                "efficiency": draw_efficiency(panels, width=_WIDTH),
                "steps": draw_steps(panels, width=_WIDTH),
                "memory": draw_memory(panels, width=_WIDTH),
            }
        else:
            figure = draw_nothing(results.experiment, summaries)
            plots = dict.fromkeys(ALWAYS, figure)
        plots |= _draw_where_varied(summaries)
        plots |= {one.plot: draw_timeline(one, width=_WIDTH) for one in profiles}
        for name, figure in plots.items():
            for suffix in ("svg", "png"):
                write_if_changed(layout.plot(name, suffix), _render(figure, suffix))
                # Where everything goes takes longest to find out: once is enough.
                figure.set_layout_engine("none")
    for suffix in ("svg", "png"):
        for name in set(SOMETIMES) - plots.keys():
            layout.plot(name, suffix).unlink(missing_ok=True)
        wanted = {layout.plot(one.plot, suffix) for one in profiles}
        pattern = layout.plot("profile-*", suffix)
        for path in set(pattern.parent.glob(pattern.name)) - wanted:
            path.unlink()


def _draw_where_varied(summaries: Sequence[Summary]) -> dict[str, Figure]:
    """Plots that only some experiments have anything for."""
    found: dict[str, Figure] = {}
    if sweeps := find_sweeps(summaries):
        found["bandwidth"] = draw_bandwidth(sweeps, width=_WIDTH)
    if groups := find_microbatches(summaries):
        found["microbatches"] = draw_microbatches(groups, width=_WIDTH)
    if points := find_models(find_intensities(summaries), summaries):
        found["models"] = draw_models(points, width=_WIDTH)
    return found


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
