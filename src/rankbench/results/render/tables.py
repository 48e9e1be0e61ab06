"""The table: one row for every planned cell, all of it as CSV, a selection to read."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from rankbench.record import Layout, write_if_changed
from rankbench.results.elements.content import Section
from rankbench.results.elements.notes import collect_notes
from rankbench.results.elements.text import describe_base, round_figures, show_rows
from rankbench.results.numbers.summary import Found, Summary, read
from rankbench.results.read.rows import Results
from rankbench.results.render.documents import section_to_markdown, to_csv, to_markdown
from rankbench.results.render.latex import section_to_latex, to_latex
from rankbench.results.render.page import to_html
from rankbench.results.sections import (
    bounds,
    collectives,
    ddp_timers,
    environment,
    epochs,
    intensity,
    pipeline,
    profiles,
    published,
    reports,
    variance,
)
from rankbench.results.sections import data_loading as loading
from rankbench.results.sections.utilisation import show_usage
from rankbench.results.sections.varied import find_microbatches, find_models

ESTIMATES = (
    "throughput",
    "step_ms",
    "epoch_s",
    "total_s",
    "speedup",
    "efficiency",
    "memory_mib",
    "accuracy",
)
_NAMES = (
    "experiment",
    "cell",
    "strategy",
    "backend",
    "topology",
    "devices",
    "launcher",
    "model",
    "data",
    "batch_size",
    "scaling",
    "status",
    "reason",
    "marks",
    "launches_ok",
    "launches",
    "throughput",
    "step_ms",
    "epoch_s",
    "total_s",
    "speedup",
    "base",
    "efficiency",
    "memory_mib",
    "accuracy",
    "attempt",
)
COLUMNS = tuple(
    column
    for name in _NAMES
    for column in ((name, f"{name}_lo", f"{name}_hi") if name in ESTIMATES else (name,))
)


@dataclass(frozen=True, slots=True)
class Told:
    """What is told of the cells beside their rows.

    Attributes:
        page: of pages alone: table.md has nothing that was not measured.
        sections: below the table, in this order.
        beside: files of their own, by name: the document, and all columns.
    """

    page: Sequence[Section]
    sections: Sequence[Section]
    beside: Mapping[str, tuple[Section | None, pd.DataFrame]]


def build(
    layout: Layout,
    found: Found | None = None,
    *,
    only: Collection[str] | None = None,
) -> None:
    """Write tables: functions of plan and records alone.

    table.csv, .md, .html and .tex; where there is anything to tell also bounds,
    collectives, ddp-timers, environment, epochs, loading, models, pipeline, profiles,
    published, reports and variance, each .csv, .md and .tex; the page has them all.

    Args:
        layout: the result directory.
        found: what was read of it, if it was.
        only: the sections beside the table; None for all.

    Raises:
        ValueError: the plan, a record or its steps are damaged; the message names it.
    """
    found = found or read(layout)
    results, summaries = found.results, found.summaries
    told = tell(layout, found, only=only)
    title, rows = results.experiment, show_rows(summaries)
    notes = collect_notes(summaries)
    texts = {
        "csv": to_csv(make_table(results, summaries)),
        "md": to_markdown(title, rows, notes, told.sections),
        "html": to_html(title, rows, notes, [*told.page, *told.sections]),
        "tex": to_latex(title, rows, notes),
    }
    for suffix, text in texts.items():
        write_if_changed(layout.table(suffix), text.encode())
    for name, (section, frame) in told.beside.items():
        _write_beside(layout, title, name, section, frame)


def tell(layout: Layout, found: Found, *, only: Collection[str] | None = None) -> Told:
    """Everything but the rows of the table.

    Args:
        layout: the result directory.
        found: what was read of it.
        only: the sections that are wanted; None for all.

    Raises:
        ValueError: a record is damaged; the message names it.
    """
    study, summaries = found.results.study, found.summaries
    models = intensity.find_intensities(summaries)
    timers = ddp_timers.make_frame(summaries)
    pipelines = pipeline.find_pipelines(summaries)
    sweeps = collectives.find_sweeps(summaries)
    bound = bounds.find_bounds(summaries, sweeps)
    setup = environment.find_environment(summaries)
    profiled = profiles.load_profiles(layout, found.results.rows)
    scattered = variance.make_frame(summaries)
    told = {
        "reports": reports.show(summaries),
        "bounds": bounds.show(bound),
        "collectives": collectives.show(sweeps),
        "variance": variance.show(scattered),
        "epochs": epochs.show(summaries),
        "loading": loading.show(summaries),
        "models": intensity.show(models, has_plot=bool(find_models(models, summaries))),
        "utilisation": show_usage(found.results.rows),
        "ddp-timers": ddp_timers.show(timers),
        "pipeline": pipeline.show(
            pipelines, has_plot=bool(find_microbatches(summaries))
        ),
        "profiles": profiles.show(profiled),
        "environment": environment.show(setup),
    }
    known = published.show(study, summaries) if study else None
    frames = {
        "bounds": bounds.make_frame(bound),
        "collectives": collectives.make_frame(sweeps),
        "ddp-timers": timers,
        "environment": environment.make_frame(setup),
        "epochs": epochs.make_frame(summaries),
        "loading": loading.make_frame(summaries),
        "models": intensity.make_frame(models),
        "pipeline": pipeline.make_frame(pipelines),
        "profiles": profiles.make_frame(profiled),
        "reports": reports.make_frame(summaries),
        "published": (
            published.make_frame(study, summaries) if study else pd.DataFrame()
        ),
        "variance": scattered,
    }
    # Their files have another section than the pages.
    own = {"profiles": profiles.show_operators(profiled), "published": known}
    wanted = {*told, *frames} if only is None else set(only)
    return Told(
        page=[known] if known and "published" in wanted else [],
        sections=[one for name, one in told.items() if one and name in wanted],
        beside={
            name: (own[name] if name in own else told[name], frame)
            for name, frame in frames.items()
            if name in wanted
        },
    )


def _write_beside(
    layout: Layout, title: str, name: str, section: Section | None, frame: pd.DataFrame
) -> None:
    """NAME.csv, .md and .tex; where there is nothing to tell, none is left either."""
    if section is None:
        for suffix in ("csv", "md", "tex"):
            layout.table(suffix, name).unlink(missing_ok=True)
        return
    texts = {
        "csv": to_csv(frame),
        "md": section_to_markdown(title, section),
        "tex": section_to_latex(title, section),
    }
    for suffix, text in texts.items():
        write_if_changed(layout.table(suffix, name), text.encode())


def make_table(results: Results, summaries: Sequence[Summary]) -> pd.DataFrame:
    """The columns of table.csv; numbers have 4 significant digits or are missing."""
    rows = [{"experiment": results.experiment, **_columns(s)} for s in summaries]
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    numbers = [f"{name}{end}" for name in ESTIMATES for end in ("", "_lo", "_hi")]
    return table.astype({**dict.fromkeys(numbers, "float64"), "attempt": "Int64"})


def _columns(summary: Summary) -> dict[str, Any]:
    row, cell = summary.row, summary.row.cell
    columns: dict[str, Any] = {
        "cell": row.id,
        "strategy": cell.strategy,
        "backend": cell.backend,
        "topology": cell.topology,
        "devices": row.devices,
        "launcher": cell.launcher,
        "model": cell.model,
        "data": cell.data,
        "batch_size": cell.batch_size,
        "scaling": cell.scaling,
        "status": row.status,
        "reason": row.reason,
        "marks": " ".join(summary.marks) or None,
        "launches_ok": row.ok,
        "launches": row.wanted,
        "base": "; ".join(map(describe_base, summary.bases)) or None,
        "attempt": row.attempt,
    }
    for name, number in summary.numbers.items():
        columns[name] = round_figures(number.value)
        if number.low is not None and number.high is not None:
            columns[f"{name}_lo"] = round_figures(number.low)
            columns[f"{name}_hi"] = round_figures(number.high)
    return columns
