"""The plots as files: the same bytes from the same plan and records."""

from __future__ import annotations

import functools
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import seaborn as sns
from matplotlib.figure import Figure

from rankbench.record import PLOTS, Layout, write_if_changed
from rankbench.results.numbers.series import Panel, cut, make_panels
from rankbench.results.numbers.summary import Found, Summary, read
from rankbench.results.render.documents import to_csv
from rankbench.results.sections import (
    bandwidth,
    collectives,
    curves,
    efficiency,
    options,
    phases,
    scaling,
    spread,
    timeline,
    varied,
)
from rankbench.results.sections.intensity import find_intensities
from rankbench.results.sections.profiles import Profile, load_profiles

# Beside `PLOTS`, where there is something to show.
SOMETIMES = ("bandwidth", "microbatches", "models")

_WIDTH = 8.0

# Of larger experiments nobody could read the whole plot, nor hold its bitmap.
_MOST_PANELS, _MOST_CELLS = 12, 120

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
    # A name with a dollar sign is no formula.
    "text.parse_math": False,
}
_METADATA: dict[str, dict[str, Any]] = {
    "svg": {"Date": None},
    "png": {"Software": None},
}


@dataclass(frozen=True, slots=True)
class _Drawn:
    """What is drawn: panels of comparable cells, and the cells that have a profile."""

    experiment: str
    summaries: Sequence[Summary]
    panels: Sequence[Panel]
    profiles: Sequence[Profile]


def build(layout: Layout, found: Found | None = None) -> None:
    """Write plots/*.svg, .png and .csv: functions of plan and records alone.

    Those of `PLOTS`; those of `SOMETIMES` for which there is something to show; and
    profile-CELL for each cell that has a profile. What is there no more is removed.

    Args:
        layout: the result directory.
        found: what was read of it, if it was.

    Raises:
        ValueError: the plan, a record or its steps are damaged; the message names it.
    """
    matplotlib.use("Agg")
    drawn = _load(layout, found or read(layout))
    _write_data(layout, drawn)
    with matplotlib.rc_context():
        # A user's own matplotlibrc must not change a published plot.
        matplotlib.rcdefaults()
        sns.set_theme("paper", "whitegrid", rc=_RC)
        there = set()
        for name, figure in _draw(drawn):
            there.add(name)
            for suffix in ("svg", "png"):
                write_if_changed(layout.plot(name, suffix), _render(figure, suffix))
                # Where everything goes takes longest to find out: once is enough.
                figure.set_layout_engine("none")
    for suffix in ("svg", "png", "csv"):
        for name in set(SOMETIMES) - there:
            layout.plot(name, suffix).unlink(missing_ok=True)
        wanted = {layout.plot(one.plot, suffix) for one in drawn.profiles}
        pattern = layout.plot("profile-*", suffix)
        for path in set(pattern.parent.glob(pattern.name)) - wanted:
            path.unlink()


def write_data(layout: Layout, found: Found | None = None) -> None:
    """Write only plots/*.csv: what the plots of the same names are drawn from.

    Args, Raises: as `build`.
    """
    _write_data(layout, _load(layout, found or read(layout)))


def _load(layout: Layout, found: Found) -> _Drawn:
    results, summaries = found.results, found.summaries
    profiles = load_profiles(layout, results.rows)
    return _Drawn(results.experiment, summaries, make_panels(summaries), profiles)


def _write_data(layout: Layout, drawn: _Drawn) -> None:
    panels = drawn.panels
    frames = {
        "scaling": scaling.make_frame(panels),
        "efficiency": efficiency.make_frame(panels),
        "phases": phases.make_frame(panels),
        "steps": spread.make_steps_frame(panels),
        "memory": spread.make_memory_frame(panels),
        "curves": curves.make_frame(panels),
        "time": curves.make_frame(panels, over="seconds"),
        **{one.plot: timeline.make_frame(one) for one in drawn.profiles},
    }
    if sweeps := collectives.find_sweeps(drawn.summaries):
        frames["bandwidth"] = collectives.make_frame(sweeps)
    if groups := varied.find_microbatches(drawn.summaries):
        frames["microbatches"] = varied.make_microbatches_frame(groups)
    if points := _find_models(drawn):
        frames["models"] = varied.make_models_frame(points)
    for name, frame in frames.items():
        write_if_changed(layout.plot(name, "csv"), to_csv(frame).encode())


def _draw(drawn: _Drawn) -> Iterator[tuple[str, Figure]]:
    """Each plot by its name."""
    if drawn.panels:
        yield from _draw_panels(drawn)
    else:
        figure = draw_nothing(drawn.experiment, drawn.summaries)
        yield from ((name, figure) for name in PLOTS)
    if sweeps := collectives.find_sweeps(drawn.summaries):
        yield "bandwidth", bandwidth.draw_bandwidth(sweeps, width=_WIDTH)
    if groups := varied.find_microbatches(drawn.summaries):
        yield "microbatches", options.draw_microbatches(groups, width=_WIDTH)
    if points := _find_models(drawn):
        yield "models", options.draw_models(points, width=_WIDTH)
    for one in drawn.profiles:
        yield one.plot, timeline.draw_timeline(one, width=_WIDTH)


def _draw_panels(drawn: _Drawn) -> Iterator[tuple[str, Figure]]:
    panels = cut(drawn.panels, panels_at_most=_MOST_PANELS, cells=_MOST_CELLS)
    shown, there = (sum(len(p.points) for p in x) for x in (panels, drawn.panels))
    for name, draw in (
        ("scaling", scaling.draw_scaling),
        ("efficiency", efficiency.draw_efficiency),
        ("phases", phases.draw_phases),
        ("steps", spread.draw_steps),
        ("memory", spread.draw_memory),
        ("curves", curves.draw_curves),
        ("time", functools.partial(curves.draw_curves, over="seconds")),
    ):
        figure = draw(panels, width=_WIDTH)
        if shown < there:
            said = f"the first {shown} of {there} cells; {name}.csv has all"
            figure.suptitle(said, size=9)
        yield name, figure


def _find_models(drawn: _Drawn) -> list[varied.Point]:
    return varied.find_models(find_intensities(drawn.summaries), drawn.summaries)


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
