"""Pipelines: the share of a step in which ranks wait, and the least it could be."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rankbench.results.elements import plotting
from rankbench.results.elements.panels import PanelPlot, draw_panels
from rankbench.results.elements.plotting import Ends, Mark, Style, Styles
from rankbench.results.elements.section import Content, Section
from rankbench.results.numbers.result_set import ResultSet
from rankbench.results.numbers.series import Panel, Series
from rankbench.results.numbers.statistics import Estimate, mean
from rankbench.results.numbers.summary import Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def make(found: ResultSet) -> Content | None:
    """A row for each cell that is a pipeline."""
    rows = list(map(_row, filter(_is_pipeline, found.measured)))
    if not rows:
        return None
    plot = _plot(find_microbatches(found.measured))
    return Content(rows=rows, drawings=list(draw_panels(found, [plot])))


def _describe_ranks(summary: Summary) -> list[list[dict[str, Any]]]:
    """What the strategy recorded of itself, by launch and rank."""
    records = [one.launch.record for one in summary.counted]
    return [[rank.get("details", {}) for rank in r["ranks"]] for r in records]


def _is_pipeline(summary: Summary) -> bool:
    """Whether its ranks have recorded how long they wait."""
    return {"schedule", "microbatches"} <= summary.row.cell.options.keys() and all(
        "bubble" in rank for ranks in _describe_ranks(summary) for rank in ranks
    )


def _row(summary: Summary) -> dict[str, Any]:
    launches = _describe_ranks(summary)
    ranks = launches[0]
    options = summary.row.cell.options
    # Share of a step in which a rank waits, mean over the ranks: by launch.
    bubbles = [float(np.mean([rank["bubble"] for rank in own])) for own in launches]
    return {
        "cell": summary.row.id,
        "schedule": options["schedule"],
        "microbatches": options["microbatches"],
        "ranks": len(ranks),
        "bubble": mean(bubbles),
        "ideal_bubble": Estimate(ranks[0]["ideal_bubble"]),
        "speedup": summary.numbers.get("speedup"),
    }


def find_microbatches(summaries: Sequence[Summary]) -> dict[str, list[Summary]]:
    """Rows that differ only in their number of microbatches, by a name of the group.

    The rows must be ok.
    """
    groups: dict[str, list[Summary]] = {}
    for summary in summaries:
        options = summary.row.cell.options
        if "microbatches" in options:
            fields = summary.row.cell.to_dict()
            rest = {k: v for k, v in options.items() if k != "microbatches"}
            key = json.dumps({**fields, "options": rest}, sort_keys=True)
            groups.setdefault(key, []).append(summary)
    found = {}
    for group in groups.values():
        cell = group[0].row.cell
        name = f"{cell.strategy} {cell.backend} {cell.topology} {cell.model}"
        if len(group) > 1:
            found[f"{name} {cell.options.get('schedule', '')}".strip()] = group
    return found


def _rate(summary: Summary) -> Estimate | None:
    """Samples/s, also of language models, so that one axis fits all."""
    number = summary.numbers.get("throughput")
    return number and number.scaled(1 / summary.row.cell.units_per_sample)


def _plot(groups: Mapping[str, Sequence[Summary]]) -> PanelPlot:
    """Speedup against microbatches; throughput if a row has no base."""
    of_cell = {point.row.id: name for name, own in groups.items() for point in own}
    points = [point for own in groups.values() for point in own]
    has_base = all("speedup" in point.numbers for point in points)

    def rows(point: Summary) -> Iterator[dict[str, Any]]:
        if point.row.id in of_cell:
            yield {
                "series": of_cell[point.row.id],
                "microbatches": _count(point),
                "speedup": point.numbers.get("speedup"),
                "throughput": _rate(point),
            }

    def draw(grid: Sequence[Axes], panel: Panel, styles: Styles) -> Ends:
        (axes,) = grid
        looks: dict[str, Style] = {}
        lines: dict[str, list[Summary]] = {}
        for series, point in plotting.each_row(panel):
            if name := of_cell.get(point.row.id):
                looks.setdefault(name, styles[series.name])
                lines.setdefault(name, []).append(point)

        def mark(_: Series, point: Summary) -> Mark | None:
            number = point.numbers["speedup"] if has_base else _rate(point)
            return plotting.Mark(Estimate(_count(point)), number) if number else None

        joined = tuple(
            Series(name, tuple(sorted(own, key=_count))) for name, own in lines.items()
        )
        ends = plotting.draw_series(axes, Panel("", joined), looks, mark)
        counts = [_count(point) for series in joined for point in series.points]
        plotting.scale_devices(axes, counts)
        axes.set_xlabel("microbatches")
        axes.set_ylabel("speedup" if has_base else "samples/s")
        axes.set_ylim(bottom=0)
        return ends

    return PanelPlot(
        name="microbatches",
        question="How many microbatches?",
        caption="Speedup against microbatches: more of them shorten the bubble.",
        columns={
            "microbatches": int,
            **dict.fromkeys(("speedup", "throughput"), Estimate),
        },
        rows=rows,
        says=lambda panel: any(point.row.id in of_cell for point in panel.points),
        draw=draw,
    )


def _count(point: Summary) -> int:
    return int(point.row.cell.options["microbatches"])


SECTION = Section(
    name="pipeline",
    title="Pipelines",
    reading=(
        "Bubble: share of a step in which a rank waits, mean over ranks and launches, "
        "from steps after the timed ones. Ideal: (K-1)/(M+K-1) with "
        "K ranks and M microbatches (M times the stages of a rank if they are "
        "interleaved). Stages of unequal length and communication are why a bubble is "
        "larger than the ideal one."
    ),
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
    plots=("microbatches",),
)
