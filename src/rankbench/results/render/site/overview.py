"""Everything that the page shows, as one value that is written into it as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.colors import to_hex

from rankbench import __version__
from rankbench.record import Layout, read_json
from rankbench.results.elements.content import Section
from rankbench.results.elements.notes import Note, collect_notes
from rankbench.results.elements.panels import color_series
from rankbench.results.elements.text import Text
from rankbench.results.numbers.series import Panel, make_panels
from rankbench.results.numbers.summary import Found, Summary
from rankbench.results.render.site.cells import describe_cell, find_common
from rankbench.results.render.site.facts import Pool, number
from rankbench.results.render.tables import tell
from rankbench.results.sections.phases import color_phases
from rankbench.results.sections.profiles import load_profiles


def describe_results(layout: Layout, found: Found) -> dict[str, Any]:
    """Plan and records as the page shows them.

    Args:
        layout: the result directory.
        found: what was read of it.

    Raises:
        ValueError: the plan, a record or its steps are damaged; the message names it.
    """
    plan = read_json(layout.plan)
    results, summaries = found.results, found.summaries
    told = tell(layout, found)
    panels = make_panels(summaries)
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
        "sections": [_describe_section(one) for one in (*told.page, *told.sections)],
        # What is said of one cell stands in its view.
        "notes": _describe_notes(
            note for note in collect_notes(summaries) if note.term not in ids
        ),
    }


def _find_period(cells: Iterable[Mapping[str, Any]]) -> list[str]:
    """When the first and the last launch began; [] without any."""
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
    """Cells that may be compared, by their series; lines join some of those."""
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


def _describe_section(section: Section) -> dict[str, Any]:
    return {
        "title": section.title,
        "about": section.about,
        "files": list(section.files),
        "notes": _describe_notes([*section.before, *section.notes]),
        "grids": [
            {
                "title": grid.title if grid.title != section.title else "",
                "columns": list(grid.columns),
                "numbers": sorted(grid.numbers),
                "rows": [[_describe_text(text) for text in row] for row in grid.rows],
            }
            for grid in section.grids
        ],
    }


def _describe_text(text: Text) -> str | list[str]:
    """The value alone where there is nothing else; never a link of a record's own."""
    return [text.value, text.interval] if text.interval else text.value


def _describe_notes(notes: Iterable[Note]) -> list[list[str]]:
    return [[note.term, note.text] for note in notes]
