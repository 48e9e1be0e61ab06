"""Pipelines: the share of a step in which ranks wait, and the least it could be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rankbench.results.elements import plotting
from rankbench.results.elements.plotting import Ends, Styles
from rankbench.results.elements.section import (
    Content,
    PanelPlot,
    Section,
    draw_panels,
)
from rankbench.results.numbers.result_set import ResultSet, Summary
from rankbench.results.numbers.series import Panel, Series
from rankbench.results.numbers.statistics import Estimate, mean


def make(found: ResultSet) -> Content | None:
    """Bubble: share of a step in which a rank waits, mean over ranks and launches, from
    steps after the timed ones. Ideal: (K-1)/(M+K-1) with K ranks and M microbatches (M
    times the stages of a rank if they are interleaved). Stages of unequal length and
    communication are why a bubble is larger than the ideal one.
    """
    rows = list(map(_row, filter(_is_pipeline, found.measured)))
    drawings = list(draw_panels(found, [_PLOT]))
    return Content(rows=rows, drawings=drawings) if rows else None


def _describe_ranks(summary: Summary) -> list[list[dict[str, Any]]]:
    """What the strategy recorded of itself, by launch and rank."""
    records = summary.counted["record"]
    return [[rank["details"] for rank in r["ranks"]] for r in records]


def _is_pipeline(summary: Summary) -> bool:
    """Whether its ranks have recorded how long they wait."""
    return {"schedule", "microbatches"} <= summary.cell.options.keys() and all(
        "bubble" in rank for ranks in _describe_ranks(summary) for rank in ranks
    )


def _row(summary: Summary) -> dict[str, Any]:
    launches = _describe_ranks(summary)
    ranks = launches[0]
    options = summary.cell.options
    # Share of a step in which a rank waits, mean over the ranks: by launch.
    bubbles = [float(np.mean([rank["bubble"] for rank in own])) for own in launches]
    return {
        "cell": summary.id,
        "schedule": options["schedule"],
        "microbatches": options["microbatches"],
        "ranks": len(ranks),
        "bubble": mean(bubbles),
        "ideal_bubble": Estimate(ranks[0]["ideal_bubble"]),
        "speedup": summary.numbers.get("speedup"),
    }


def _find_runs(panel: Panel) -> dict[str, list[tuple[Series, Summary]]]:
    """Cells with a speedup that differ in microbatches alone, by what they share."""
    sweeps: dict[str, list[tuple[Series, Summary]]] = {}
    for series, point in plotting.each_row(panel):
        cell = point.cell
        if "microbatches" in cell.options and "speedup" in point.numbers:
            words = [one for one in series.words if not one.startswith("microbatches")]
            name = " ".join([cell.strategy, cell.backend, cell.topology, *words])
            sweeps.setdefault(name, []).append((series, point))
    for own in sweeps.values():
        own.sort(key=lambda row: _count(row[1]))
    return {name: own for name, own in sweeps.items() if len(own) > 1}


def _count(point: Summary) -> int:
    return int(point.cell.options["microbatches"])


def _draw(grid: Sequence[plotting.Axes], panel: Panel, styles: Styles) -> Ends:
    (axes,) = grid
    sweeps = _find_runs(panel)
    lines = [Series(name, tuple(p for _, p in own)) for name, own in sweeps.items()]
    ends = plotting.draw_series(
        axes,
        Panel("", tuple(lines)),
        {name: styles[own[0][0].name] for name, own in sweeps.items()},
        lambda _, p: plotting.Mark(Estimate(_count(p)), p.numbers["speedup"]),
    )
    plotting.scale_devices(axes, {_count(p) for line in lines for p in line.points})
    axes.set_xlabel("microbatches")
    axes.set_ylabel("speedup")
    axes.set_ylim(bottom=0)
    return ends


_PLOT = PanelPlot(
    name="microbatches",
    question="How many microbatches?",
    caption="Speedup against microbatches: more of them shorten the bubble.",
    says=lambda panel: bool(_find_runs(panel)),
    draw=_draw,
)

SECTION = Section(
    title="Pipelines",
    order=80,
    make=make,
    columns={
        "cell": (str, "cell"),
        "schedule": (str, "schedule"),
        "microbatches": (int, "microbatches"),
        "ranks": (int, "ranks"),
        "bubble": (Estimate, "bubble"),
        "ideal_bubble": (Estimate, "ideal"),
        "speedup": (Estimate, "speedup"),
    },
)
