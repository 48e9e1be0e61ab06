"""All data of the page as one value, which is written into it as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.colors import to_hex

from rankbench import __version__
from rankbench.record import read_json
from rankbench.results.elements.plotting import color_phases, color_series
from rankbench.results.elements.text import Note
from rankbench.results.numbers.found import Found
from rankbench.results.numbers.series import Panel
from rankbench.results.numbers.summary import Summary
from rankbench.results.render.html.cells import describe_cell, find_common
from rankbench.results.render.html.facts import Pool, number
from rankbench.results.sections.profiles import load_profiles

if TYPE_CHECKING:
    from rankbench.results.render.document import Document


def describe_results(found: Found, document: Document) -> dict[str, Any]:
    """The data of the page, from plan and records.

    Args:
        found: what was read of a result directory.
        document: its sections.

    Raises:
        ValueError: the plan, a record or its steps are damaged; the message names it.
    """
    layout, results, summaries = found.layout, found.results, found.summaries
    plan = read_json(layout.plan)
    panels = found.panels
    profiles = {one.cell: one for one in load_profiles(layout, results.rows)}
    common, facts = find_common(summaries), Pool()
    cells = [
        describe_cell(
            layout, one, plan, profiles.get(one.row.id), common=common, facts=facts
        )
        for one in summaries
    ]
    colors = color_phases([p for one in cells for p in one.get("phases", ())])
    ids, period = {one.row.id for one in summaries}, _find_period(cells)
    return {
        "name": results.experiment,
        "description": plan["experiment"].get("description") or "",
        "rankbench": __version__,
        "measured": period,
        "citation": _cite(results.experiment, period),
        "common": common,
        "facts": facts.values,
        "cells": cells,
        "panels": [_describe_panel(panel) for panel in panels],
        "series": {name: to_hex(c) for name, c in color_series(panels).items()},
        "phases": {name: to_hex(color) for name, color in colors.items()},
        "names": document.names,
        "sections": [[made.name, made.title] for made in document.rest],
        # Notes on a single cell appear in the view of that cell.
        "notes": _describe_notes(
            note for note in document.table.content.notes if note.term not in ids
        ),
    }


def _find_period(cells: Iterable[Mapping[str, Any]]) -> list[str]:
    """Start of the first and of the last launch; [] without launches."""
    times = sorted(
        launch["started"]
        for cell in cells
        for attempt in cell.get("attempts", ())
        for launch in attempt["launches"]
        if "started" in launch
    )
    return [times[0], times[-1]] if times else []


def _cite(experiment: str, period: Sequence[str]) -> str:
    """An entry for BibTeX."""
    days = " to ".join(dict.fromkeys(time[:10] for time in period)) or "not yet"
    year = period[-1][:4] if period else ""
    lines = [
        f"@misc{{rankbench-{experiment},",
        f"  title = {{{experiment}: results of rankbench {__version__}}},",
        f"  year = {{{year}}},",
        f"  note = {{measured {days}; rankbench: a reproducible benchmark pipeline",
        "    for distributed PyTorch training}",
        "}",
    ]
    return "\n".join(lines)


def _describe_panel(panel: Panel) -> dict[str, Any]:
    """The cells of a panel by series, and the cells that lines join."""
    return {
        "title": panel.title,
        "bases": [[base.id, number(base.throughput.value)] for base in panel.bases],
        "series": [
            {
                "name": series.name,
                "cells": _ids(series.points),
                "lines": [_ids(line) for line in series.lines if len(line) > 1],
            }
            for series in panel.series
        ],
    }


def _ids(points: Iterable[Summary]) -> list[str]:
    return [point.row.id for point in points]


def _describe_notes(notes: Iterable[Note]) -> list[list[str]]:
    return [[note.term, note.text] for note in notes]
