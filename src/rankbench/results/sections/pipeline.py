"""Pipelines: the share of a step in which ranks wait, and the least it could be."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from rankbench.results.elements.section import (
    Content,
    Drawing,
    Section,
    make_frame,
)
from rankbench.results.numbers.result_set import ResultSet
from rankbench.results.numbers.statistics import Estimate, mean
from rankbench.results.numbers.summary import Summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HEIGHT = 2.9


def make(found: ResultSet) -> Content | None:
    """A row for each cell that is a pipeline."""
    rows = list(map(_row, filter(_is_pipeline, found.measured)))
    if not rows:
        return None
    groups = find_microbatches(found.measured)
    drawing = Drawing(
        name="microbatches",
        caption="Speedup against microbatches: more of them shorten the bubble.",
        frame=partial(_frame, groups),
        draw=partial(_draw, groups),
    )
    return Content(rows=rows, drawings=[drawing] if groups else [])


def _describe_ranks(summary: Summary) -> list[list[dict[str, Any]]]:
    """What the strategy recorded of itself, by launch and rank."""
    records = [launch.record for launch in summary.counted_launches]
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


def _frame(groups: Mapping[str, Sequence[Summary]]) -> pd.DataFrame:
    columns = {
        "series": str,
        "cell": str,
        "microbatches": int,
        "speedup": Estimate,
        "throughput": Estimate,
    }
    rows = [
        {
            "series": name,
            "cell": summary.row.id,
            "microbatches": summary.row.cell.options["microbatches"],
            "speedup": summary.numbers.get("speedup"),
            "throughput": _rate(summary),
        }
        for name, group in groups.items()
        for summary in group
    ]
    return make_frame(columns, rows)


def _rate(summary: Summary) -> Estimate | None:
    """Samples/s, also of language models, so that one axis fits all."""
    number = summary.numbers.get("throughput")
    return number and number.scaled(1 / summary.row.cell.units_per_sample)


def _draw(groups: Mapping[str, Sequence[Summary]], width: float) -> Figure:
    """Speedup against microbatches; throughput if a row has no base."""
    import seaborn as sns

    from rankbench.results.elements import plotting

    figure, (axes,) = plotting.make_figure([_HEIGHT], width=width)
    members = [summary for group in groups.values() for summary in group]
    what = "speedup" if all("speedup" in s.numbers for s in members) else "throughput"
    names = list(groups)
    colors, markers = plotting.choose_colors(names), plotting.choose_markers(names)
    for name, group in groups.items():
        ordered = sorted(group, key=lambda s: s.row.cell.options["microbatches"])
        x = [s.row.cell.options["microbatches"] for s in ordered]
        found = [_rate(s) if what == "throughput" else s.numbers[what] for s in ordered]
        numbers = [number for number in found if number]
        style = {"color": colors[name], "marker": markers[name], "ms": 5, "lw": 1.1}
        axes.plot(x, [number.value for number in numbers], label=name, **style)
        for at, number in zip(x, numbers, strict=True):
            plotting.draw_interval(axes, at, number, color=colors[name])
    counts = sorted({s.row.cell.options["microbatches"] for s in members})
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.minorticks_off()
    axes.set_xlabel("microbatches")
    axes.set_ylabel(what if what == "speedup" else "samples/s")
    axes.set_ylim(bottom=0)
    figure.legend(loc="outside lower center", ncols=2)
    sns.despine(ax=axes)
    return figure


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
    # Version 2: the speedup is paired by round.
    plots=("microbatches",),
)
