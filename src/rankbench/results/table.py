"""The table: one row for every planned cell, all of it as CSV, a selection to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from rankbench.record import Layout, write_if_changed
from rankbench.results import loading, published
from rankbench.results.documents import (
    grids_to_markdown,
    to_csv,
    to_latex,
    to_markdown,
)
from rankbench.results.load import Results, load
from rankbench.results.notes import collect_notes
from rankbench.results.page import to_html
from rankbench.results.summary import Summary, summarise
from rankbench.results.text import describe_base, round_figures, show_rows
from rankbench.results.utilisation import collect_usage

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


def build(layout: Layout) -> None:
    """Write tables: functions of plan and records alone.

    table.csv, .md, .html and .tex; loading.csv and .md; published.csv and .md where the
    experiment repeats published numbers.

    Raises:
        ValueError: the plan, a record or its steps are damaged; the message names it.
    """
    results = load(layout)
    summaries = summarise(results)
    title, study, rows = results.experiment, results.study, show_rows(summaries)
    notes = [*collect_notes(summaries), *loading.explain(summaries)]
    usage = collect_usage(results.rows)
    beside = published.show(study, summaries) if study else None
    texts = {
        layout.table("csv"): to_csv(make_table(results, summaries)),
        layout.table("md"): to_markdown(title, rows, notes, usage),
        layout.table("html"): to_html(title, rows, notes, usage, beside),
        layout.table("tex"): to_latex(title, rows, notes),
        layout.table("csv", "loading"): to_csv(loading.make_frame(summaries)),
        layout.table("md", "loading"): grids_to_markdown(
            f"{title}: loading",
            [loading.show_parts(summaries)],
            after=loading.explain(summaries),
        ),
    }
    if study and beside:
        frame = published.make_frame(study, summaries)
        texts[layout.table("csv", "published")] = to_csv(frame)
        texts[layout.table("md", "published")] = grids_to_markdown(
            f"{title}: published and measured",
            beside.grids,
            before=beside.about,
            after=beside.notes,
        )
    for path, text in texts.items():
        write_if_changed(path, text.encode())


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
